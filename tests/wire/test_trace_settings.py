# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.base.errors import InternalError
from pytriton.protocol.settings import encode_trace_settings, read_trace_settings


def test_changes_are_lists_of_texts():
    body = b'{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"5","trace_count":null}'

    assert read_trace_settings(body) == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["5"],
        "trace_count": [],
    }


@pytest.mark.parametrize(
    "body, text",
    [
        (b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", "attempt to get members for non-object"),
        (b'{"trace_rate":5}', "attempt to access JSON non-string as string"),
        (b'{"trace_rate":["5"]}', "attempt to access JSON non-string as string"),
        (b'{"trace_level":"OFF"}', "attempt to access JSON non-array as array"),
        (b'{"trace_level":[1]}', "attempt to access JSON non-string as string"),
    ],
)
def test_malformed_changes_are_refused_in_tritons_words(body, text):
    with pytest.raises(InternalError) as refusal:
        read_trace_settings(body)

    assert refusal.value.message == text


def test_only_levels_are_an_array():
    settings = {"trace_level": ["OFF"], "trace_rate": ["1000"]}

    assert encode_trace_settings(settings) == b'{"trace_level":["OFF"],"trace_rate":"1000"}'
