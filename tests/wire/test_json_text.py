# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol import json_text, large_json
from pytriton.protocol.json_text import (
    dump_json,
    dump_json_leniently,
    is_utf8,
    load_json,
    load_members,
    names_in,
)

# The texts that the real Triton answers with are compared in tests/differential.

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_load_reads_what_dump_writes(value):
    assert load_json(dump_json(value)) == value


@given(JSON_VALUES)
def test_lenient_dump_writes_the_same_values(value):
    assert json.loads(dump_json_leniently(value)) == value


@given(st.binary())
def test_load_gives_a_value_or_an_error_of_ours(body):
    # Any other exception fails the test.
    with contextlib.suppress(InternalError, InvalidArgumentError):
        load_json(body)


@pytest.mark.parametrize(
    "text,expected",
    [
        (b"[Infinity, -Infinity]", [math.inf, -math.inf]),
        (b"[Inf, -Inf]", [math.inf, -math.inf]),
        (b'{"Inf": "Inf", "x": [-Inf, "\\"Inf"]}', {"Inf": "Inf", "x": [-math.inf, '"Inf']}),
        (b"\xef\xbb\xbf[1]", [1]),
        (b'["\xff"]', ["\udcff"]),
        (b'["\\ud83d\\ude00", NaN]'.replace(b"NaN", b"1"), ["\U0001f600", 1]),
        (b'["\xfe\\ud83d\\ude00\\\\ud800"]', ["\udcfe\U0001f600\\ud800"]),
    ],
)
def test_load_accepts_what_only_triton_does(text, expected):
    assert load_json(text) == expected


def test_load_reads_not_a_number():
    assert all(map(math.isnan, load_json(b"[NaN, -NaN]")))


@pytest.mark.parametrize(
    "text,message",
    [
        (b"", "The document is empty. at 0"),
        (b" \n", "The document is empty. at 2"),
        (b"[1,]", "Invalid value. at 3"),
        (b'{"a":1,}', "Missing a name for object member. at 7"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b'{"a":[1 2]}', "Missing a comma or ']' after an array element. at 8"),
        (b'[{"a":1 2}]', "Missing a comma or '}' after an object member. at 8"),
        (b"[1] 2", "The document root must not be followed by other values. at 4"),
        (b"[1.]", "Miss fraction part in number. at 3"),
        (b"[1e+]", "Miss exponent in number. at 4"),
        (b"[1e5.]", "Missing a comma or ']' after an array element. at 4"),
        (b"[1e400]", "Number too big to be stored in double. at 1"),
        (b'["\xc3\xa9", 1e999]', "Number too big to be stored in double. at 7"),
        (b"[" + b"9" * 5000 + b"]", "Number too big to be stored in double. at 1"),
        (b"[NaN, " + b"9" * 5000 + b"]", "Number too big to be stored in double. at 0"),
        (b'["a\\q"]', "Invalid escape character in string. at 3"),
        (b'["a', "Missing a closing quotation mark in string. at 3"),
        (b'["a\\', "Invalid escape character in string. at 3"),
        (b'["\\u12"]', "Incorrect hex digit after \\u escape in string. at 2"),
        (b'["\\ud800"]', "The surrogate pair in string is invalid. at 2"),
        (b'["\\udc00"]', "The surrogate pair in string is invalid. at 2"),
        (b'["\\ud800", 1', "The surrogate pair in string is invalid. at 2"),
        (b'["\xc3\xa9" 1]', "Missing a comma or ']' after an array element. at 6"),
    ],
)
def test_load_names_the_mistake_and_its_byte(text, message):
    with pytest.raises(InternalError) as caught:
        load_json(text)

    assert caught.value.message == f"failed to parse the request JSON buffer: {message}"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_load_refuses_a_million_levels_without_a_stack(opening):
    with pytest.raises(InvalidArgumentError, match="nesting depth exceeds"):
        load_json(opening * 1_000_000)


def test_dump_keeps_bytes_that_are_not_utf8():
    assert dump_json(["a\udcff"]) == b'["a\xff"]'


def test_lenient_dump_writes_the_words_for_what_is_not_finite():
    assert dump_json_leniently([math.nan, math.inf, -math.inf]) == b"[NaN,Infinity,-Infinity]"


@given(st.text(st.characters()))
def test_is_utf8_agrees_with_the_encoder(text):
    try:
        orjson.dumps(text)
    except TypeError:
        assert not is_utf8(text)
    else:
        assert is_utf8(text)


_names = st.sampled_from(["a", "b", "a:b", '"', "\u003a", "é"])
_values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a:"\\{', max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
    max_leaves=3,
)


@given(
    pairs=st.lists(st.tuples(_names, _values), max_size=4),
    ascii_only=st.booleans(),
    blanks=st.booleans(),
    nested=st.booleans(),
)
def test_first_of_repeated_members_counts(pairs, ascii_only, blanks, nested):
    colon = " : " if blanks else ":"
    members = [
        json.dumps(name, ensure_ascii=ascii_only).replace(":", "\\u003a" if ascii_only else ":")
        + colon
        + json.dumps(value, ensure_ascii=ascii_only)
        for name, value in pairs
    ]
    text = f"{{{','.join(members)}}}"
    document = load_members((f'{{"in":{text}}}' if nested else text).encode())
    document = document["in"] if nested else document

    assert document == dict(reversed(pairs))
    assert list(names_in(document)) == [name for name, _ in pairs]


# A search for the next string or constant is linear only if no quotation mark makes it scan the
# rest of the text in vain.
@given(st.text(alphabet='"\\{aI', max_size=20))
def test_each_quotation_mark_begins_a_match(text):
    patterns = (json_text._STRING_OR_BARE_CONSTANT, large_json._STRING_OR_OBJECT)

    for pattern in patterns:
        subject = text.encode() if isinstance(pattern.pattern, bytes) else text
        marks = [at for at, character in enumerate(text) if character == '"']
        assert all(pattern.match(subject, at) for at in marks)


def test_quotation_marks_after_a_bare_constant_take_linear_time():
    with pytest.raises(InternalError, match="Invalid value"):
        load_json(b"[-Inf," + b'\\"' * 100_000)


def test_text_without_an_end_is_kept_beside_bare_constants():
    with pytest.raises(InternalError, match="Missing a closing quotation mark"):
        load_json(b'[-Inf,"-Inf \\" a')
