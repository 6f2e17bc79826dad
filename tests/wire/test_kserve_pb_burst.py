# SPDX-License-Identifier: Apache-2.0
"""Many streamed responses that are written at once are those that would be written one by one."""

from __future__ import annotations

import pytest

from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.kserve_pb_response import (
    encode_infer_response,
    encode_stream_burst,
    encode_stream_response,
    message_size,
)
from tests.bursts import numbers_burst, random_burst, texts_burst


def one_by_one(burst):
    written = b""
    for response in burst.responses():
        parts = encode_stream_response(encode_infer_response(response), is_final=False)
        written += b"".join((message_prefix(message_size(parts)), *parts))
    return written


@pytest.mark.parametrize("seed", range(300))
def test_burst_is_written_like_its_responses(seed):
    burst = random_burst(seed)

    assert encode_stream_burst(burst) == one_by_one(burst)


@pytest.mark.parametrize(
    "burst", [numbers_burst([7]), numbers_burst(range(64), request_id="a"), texts_burst("abc")]
)
def test_usual_burst_is_written_like_its_responses(burst):
    assert encode_stream_burst(burst) == one_by_one(burst)


@pytest.mark.parametrize("seed", range(100))
def test_burst_knows_the_sizes_of_its_responses(seed):
    burst = random_burst(seed)

    sizes = [sum(len(output.data) for output in each.outputs) for each in burst.responses()]
    assert burst.sizes() == sizes
