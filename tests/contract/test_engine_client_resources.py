# SPDX-License-Identifier: Apache-2.0
"""A core or a front end without descriptors fails single requests, and both serve on."""

from __future__ import annotations

import sys

import pytest

from pytriton.base.errors import ErrorCode
from tests.contract.seam import doubled
from tests.resource_limits import no_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit and /proc")

VALUES = list(range(40_000))  # too many for the message itself
PAIRS = [[number, number] for number in range(10_000)]
LACK = (
    "a tensor in shared memory could not be read: the server has no file descriptors left (limit 0)"
)


@pytest.fixture
def joined(seam):
    if not seam.is_remote:
        pytest.skip("nothing is passed on")
    return seam


def check_served(seam, instance):
    """A large and a small request, and a chunk, are answered; no connection was lost."""
    calls = [seam.infer(VALUES), seam.infer([1, 2])]
    chunk, _ = seam.chunk(PAIRS)
    seam.run()
    while instance.running:
        instance.double()
        seam.run()

    assert [call.values for call in calls] == [doubled(VALUES), doubled([1, 2])]
    assert seam.ends.of(chunk) == [doubled(pair) for pair in PAIRS]
    assert seam.front_ends[0].lost == []


def test_core_that_cannot_receive_a_request_or_a_chunk_refuses_only_that(joined):
    _, (instance,) = joined.doubling(max_batch_size=50_000)
    lost, kept, (chunk, _) = joined.infer(VALUES), joined.infer([3, 4]), joined.chunk(PAIRS)
    with no_descriptors():
        joined.run()
    instance.double()
    joined.run()

    assert lost.error == f"refused: {LACK}"
    assert lost.sink.errors[0].code is ErrorCode.UNAVAILABLE
    assert kept.values == doubled([3, 4])
    assert joined.ends.of(chunk) == [("refused", LACK)] * len(PAIRS)
    check_served(joined, instance)


@pytest.mark.parametrize("is_chunk", [False, True])
def test_front_end_that_cannot_receive_answers_fails_only_those(joined, is_chunk):
    _, (instance,) = joined.doubling(max_batch_size=50_000)
    if is_chunk:
        chunk, _ = joined.chunk(PAIRS)
    else:
        lost, kept = joined.infer(VALUES), joined.infer([3, 4])
    joined.run()
    instance.double()
    with no_descriptors():
        joined.run()

    if is_chunk:
        assert joined.ends.of(chunk) == [("failed", LACK)] * len(PAIRS)
    else:
        assert lost.error == LACK
        assert lost.sink.errors[0].code is ErrorCode.UNAVAILABLE
        assert kept.values == doubled([3, 4])
    check_served(joined, instance)


def test_front_end_that_cannot_send_a_request_refuses_it(joined):
    _, (instance,) = joined.doubling(max_batch_size=50_000)
    with no_descriptors():
        call = joined.infer(VALUES)
        chunk, _ = joined.chunk(PAIRS)
        joined.run()

    reason = "the server has no file descriptors left (limit 0)"
    assert call.error == f"refused: no room for a tensor of 160000 bytes: {reason}"
    assert joined.ends.of(chunk) == [
        ("refused", f"no room for a tensor of 80000 bytes: {reason}")
    ] * len(PAIRS)
    check_served(joined, instance)


def test_core_that_cannot_send_a_response_fails_its_request(joined):
    _, (instance,) = joined.doubling(max_batch_size=50_000)
    call = joined.infer(VALUES)
    joined.run()
    with no_descriptors():
        instance.double()
        joined.run()

    assert "the server has no file descriptors left (limit 0)" in call.error
    assert call.sink.errors[0].code is ErrorCode.UNAVAILABLE
    check_served(joined, instance)
