# SPDX-License-Identifier: Apache-2.0
"""Levels, policies and deadlines of the queue, with a clock that the tests turn."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec, QueueTimeoutAction
from pytriton.serving.engine.batcher import GreedyBatcher
from pytriton.serving.engine.request_queue import DeadlineHeap
from tests.fakes import inference

MS = 1_000_000


def queue(**policy: Any) -> GreedyBatcher:
    """A queue of one level, from which `next` takes all that waits."""
    return GreedyBatcher(BatcherSpec(default_queue_policy=QueuePolicySpec(**policy)), 1000)


@pytest.mark.parametrize("fields, name", [({"id": "seven"}, "seven"), ({}, "<id_unknown>")])
def test_full_level_refuses_with_the_id_of_the_request(fields, name):
    waiting = queue(max_queue_size=1)
    waiting.add(inference(), 0)

    with pytest.raises(UnavailableError) as refused:
        waiting.add(inference(**fields), 0)

    assert refused.value.message == f"[request id: {name}] Exceeds maximum queue size"
    assert len(waiting) == 1


@pytest.mark.parametrize("priority", [0, 4, -1, 2**64 - 1])
def test_unset_or_unknown_priority_means_the_default_level(priority):
    waiting = GreedyBatcher(BatcherSpec(priority_levels=3, default_priority_level=2), 1000)
    low, default, high = inference(priority=3), inference(priority=priority), inference(priority=1)
    for each in (low, default, high):
        waiting.add(each, 0)

    assert waiting.next(0) == [high, default, low]


def test_levels_cost_nothing_until_they_are_used():
    waiting = GreedyBatcher(BatcherSpec(priority_levels=2**40, default_priority_level=2**40), 1000)
    low, high = inference(), inference(priority=77)
    waiting.add(low, 0)
    waiting.add(high, 0)

    assert waiting.next(0) == [high, low]


def test_removed_request_is_freed_at_once():
    waiting = queue(default_timeout_us=10)
    holder = lambda: None  # noqa: E731  something that can be referred to weakly
    cancelled = inference(batch_key=holder)
    reference = weakref.ref(holder)
    waiting.add(inference(), 0)
    waiting.add(cancelled, 0)

    assert waiting.remove(cancelled)
    del cancelled, holder
    gc.collect()

    assert reference() is None
    assert len(waiting) == 1


def test_remove_is_false_for_a_request_that_does_not_wait():
    waiting = queue(default_timeout_us=10)
    ran, expired, removed, unknown = inference(), inference(), inference(), inference()
    waiting.add(ran, 0)
    waiting.next(0)
    waiting.add(expired, 0)
    waiting.expire(10_000)
    waiting.add(removed, 0)
    waiting.remove(removed)

    assert [waiting.remove(each) for each in (ran, expired, removed, unknown)] == [False] * 4
    assert waiting.expire(10**9) == []


@pytest.mark.parametrize("timeout_us", [0, 10])
def test_take_all_empties_the_queue_in_order(timeout_us):
    waiting = GreedyBatcher(
        BatcherSpec(
            priority_levels=2,
            default_priority_level=2,
            default_queue_policy=QueuePolicySpec(default_timeout_us=timeout_us),
        ),
        1000,
    )
    low, high = inference(), inference(priority=1)
    waiting.add(low, 0)
    waiting.add(high, 0)

    assert waiting.take_all() == [high, low]
    assert len(waiting) == 0
    assert waiting.next_deadline_ns() == 0
    assert waiting.take_all() == []


def test_take_all_includes_expired_requests_that_nobody_was_told_of():
    waiting = queue(default_timeout_us=10)
    expired, fresh = inference(), inference()
    waiting.add(expired, 0)
    waiting.add(fresh, 9000)
    assert waiting.next(10_000) == [fresh]

    assert waiting.take_all() == [expired]
    assert waiting.expire(10_000) == []


def test_deadlines_of_requests_that_left_do_not_pile_up():
    deadlines = DeadlineHeap()
    for index in range(10_000):
        deadlines.discard(deadlines.add(inference(deadline_ns=10**15 + index)))

    assert len(deadlines) == 0
    assert deadlines.entry_count <= 66
    assert deadlines.earliest_ns() == 0


def test_deadlines_survive_the_removal_of_stale_ones():
    deadlines = DeadlineHeap()
    live = []
    for index in range(1000):
        token = deadlines.add(each := inference(deadline_ns=5000 - index))
        if index % 10:
            deadlines.discard(token)
        else:
            live.append(each)

    assert deadlines.entry_count <= 2 * len(live) + 65
    assert deadlines.pop_expired(5000) == live[::-1]


def test_repr_shows_the_counts():
    waiting = queue(default_timeout_us=10, timeout_action=QueueTimeoutAction.DELAY)
    waiting.add(inference(), 0)
    waiting.expire(10_000)
    waiting.add(inference(), 10_000)

    assert repr(waiting) == "<GreedyBatcher 2 waiting, 1 of them delayed, 1 with a deadline>"
