# SPDX-License-Identifier: Apache-2.0
"""Whole answers of gRPC are recognised by what does not change in them."""

from __future__ import annotations

import pytest

from pytriton.protocol.http2 import encode_header_block
from pytriton.tools.perf.load.grpc_session import repeated_answer
from tests.perf.load.rig import HEADERS, TRAILERS, head, message, whole_answer

KNOWN = head(1, HEADERS, is_end=False) + message(1, b"four") + head(1, TRAILERS, is_end=True)
NOT_OK = encode_header_block([(b"grpc-status", b"5")])


def answer(stream, content=b"more", data_stream=None, block=TRAILERS):
    return (
        head(stream, HEADERS, is_end=False)
        + message(data_stream or stream, content)
        + head(stream, block, is_end=True)
    )


@pytest.mark.parametrize("stream", [3, 12345])
def test_answer_of_another_stream_with_other_data_is_recognised(stream):
    usual = repeated_answer(KNOWN)
    data = b"before" + answer(stream) + b"after"

    assert usual.stream(data, 6) == stream
    assert usual.size == len(KNOWN)
    assert usual.data_bytes == 9
    assert usual.trailers == TRAILERS


@pytest.mark.parametrize(
    "other",
    [
        answer(3, b"five5"),
        answer(3, b"mor"),
        answer(3, data_stream=5),
        answer(3, block=NOT_OK),
        answer(3)[:-1],
        answer(3)[:20],
        b"",
    ],
)
def test_anything_else_is_not_recognised(other):
    assert repeated_answer(KNOWN).stream(other, 0) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KNOWN[:-1],
        KNOWN + KNOWN,
        head(1, TRAILERS, is_end=True),
        answer(3, data_stream=5),
        head(1, HEADERS, is_end=False) + message(1) + message(1) + head(1, TRAILERS, is_end=True),
    ],
)
def test_only_one_whole_answer_becomes_a_pattern(data):
    assert repeated_answer(data) is None
    assert repeated_answer(whole_answer(7)) is not None
