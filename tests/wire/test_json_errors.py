# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from json import JSONDecodeError

import pytest

from pytriton.protocol.json_text import lone_surrogate, rapidjson_error


@pytest.mark.parametrize(
    "message,text,position,expected",
    [
        ("Illegal trailing comma before end of array", "[1, ]", 2, ("Invalid value.", 4)),
        (
            "Illegal trailing comma before end of object",
            '{"a":1,}',
            6,
            ("Missing a name for object member.", 7),
        ),
    ],
)
def test_words_of_later_pythons_are_known(message, text, position, expected):
    assert rapidjson_error(JSONDecodeError(message, text, position)) == expected


@pytest.mark.parametrize(
    "text,position",
    [
        (r'"plain \n \u0041"', None),
        (r'"\ud83d\ude00"' * 3000, None),
        (r'"\\ud800"', None),
        (r'"\\\ud800"', 3),
        (r'"\ud83d\ude00\ude00"', 13),
        (r'"\ud800\n"', 1),
        (r'"\ud800\ud800\udc00"', 1),
        ("x" * 5000 + r"\uDBFF", 5000),
    ],
)
def test_half_a_surrogate_pair_is_found(text, position):
    assert lone_surrogate(text) == position
