# SPDX-License-Identifier: Apache-2.0
"""Which requests the batchers send together and when, with a clock that the tests turn."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.base.messages import lone_batch_key
from pytriton.base.model_spec import BatcherSpec, ModelSpec, QueuePolicySpec
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.batcher import (
    MAX_SKIPPED,
    Batcher,
    DelayingBatcher,
    FifoBatcher,
    GreedyBatcher,
    make_batcher,
)
from tests.fakes import inference

US = 1000


def batcher(max_batch_size: int, **settings: Any) -> Batcher:
    return make_batcher(model(max_batch_size, BatcherSpec(**settings)))


def model(max_batch_size: int, settings: BatcherSpec | None) -> ModelSpec:
    return ModelSpec(
        name="m",
        version=1,
        platform="python",
        max_batch_size=max_batch_size,
        inputs={},
        outputs={},
        required_inputs=frozenset(),
        batcher=settings,
    )


def add_rows(batcher: Batcher, *rows: int, now_ns: int = 0, **fields: Any) -> list[Inference]:
    requests = [inference(rows=count, **fields) for count in rows]
    for each in requests:
        batcher.add(each, now_ns)
    return requests


@pytest.mark.parametrize(
    "settings, kind",
    [
        (None, FifoBatcher),
        (BatcherSpec(), GreedyBatcher),
        (BatcherSpec(preferred_batch_sizes=(8,)), GreedyBatcher),
        (BatcherSpec(preferred_batch_sizes=(4, 8)), DelayingBatcher),
        (BatcherSpec(max_queue_delay_us=1), DelayingBatcher),
    ],
)
def test_make_batcher_follows_the_configuration(settings, kind):
    assert type(make_batcher(model(8, settings))) is kind


def test_fifo_runs_each_request_alone_in_order():
    fifo = FifoBatcher()
    first, second, third = add_rows(fifo, 1, 4, 1, now_ns=9)

    assert first.queued_ns == 9
    assert fifo.remove(second)
    assert not fifo.remove(second)
    assert fifo.next(10) == [first]
    assert fifo.next(10) == [third]
    assert fifo.next(10) is None
    assert fifo.next_deadline_ns() == 0
    assert fifo.expire(10) == []


def test_fifo_take_all_empties_it():
    fifo = FifoBatcher()
    requests = add_rows(fifo, 1, 1)

    assert fifo.take_all() == requests
    assert len(fifo) == 0


def test_repr_shows_how_many_wait():
    fifo = FifoBatcher()
    add_rows(fifo, 1, 1)

    assert repr(fifo) == "<FifoBatcher 2 waiting>"


def test_greedy_batch_is_whatever_waits():
    greedy = batcher(8)
    requests = add_rows(greedy, 1, 1, 1)

    assert greedy.next(0) == requests
    assert greedy.next(0) is None
    assert len(greedy) == 0


def test_greedy_batch_counts_rows_and_stops_before_the_limit():
    greedy = batcher(8)
    first, second, third = add_rows(greedy, 3, 4, 2)

    assert greedy.next(0) == [first, second]
    assert greedy.next(0) == [third]


def test_request_without_rows_counts_as_one():
    greedy = batcher(2)
    requests = add_rows(greedy, 0, 0, 0)

    assert greedy.next(0) == requests[:2]
    assert greedy.next(0) == requests[2:]


@pytest.mark.parametrize("settings", [{}, {"max_queue_delay_us": 1000}], ids=["greedy", "delay"])
def test_different_keys_never_share_a_batch(settings):
    mixed = batcher(8, **settings)
    (square,) = add_rows(mixed, 1, batch_key=(2, 2))
    wide = add_rows(mixed, 1, 1, batch_key=(4, 1))

    assert mixed.next(0) == [square]
    assert mixed.next(1000 * US) == wide


def test_requests_of_another_key_are_skipped():
    mixed = batcher(4)
    a, b, c, d, e = (add_rows(mixed, 1, batch_key=key)[0] for key in "abaab")

    assert mixed.next(0) == [a, c, d]
    assert mixed.next(0) == [b, e]
    assert mixed.next(0) is None


def test_order_may_be_kept():
    mixed = GreedyBatcher(BatcherSpec(), 4, keeps_order=True)
    a, b, c = (add_rows(mixed, 1, batch_key=key)[0] for key in "aba")

    assert [mixed.next(0) for _ in range(3)] == [[a], [b], [c]]


def test_only_so_many_requests_are_skipped():
    mixed = batcher(4)
    (first,) = add_rows(mixed, 1, batch_key="a")
    others = add_rows(mixed, *[1] * (MAX_SKIPPED + 1), batch_key="b")
    (last,) = add_rows(mixed, 1, batch_key="a")

    assert mixed.next(0) == [first]
    assert mixed.next(0) == others[:4]
    assert len(mixed) == MAX_SKIPPED - 3 + 1
    assert mixed.remove(last)


def test_model_that_does_not_batch_gets_single_requests():
    single = batcher(0)
    first, second = add_rows(single, 1, 1)

    assert single.next(0) == [first]
    assert single.next(0) == [second]


def test_urgent_requests_run_first_without_overfilling():
    levels = batcher(3, priority_levels=2, default_priority_level=2)
    normal = add_rows(levels, 1, 1, 1)
    urgent = add_rows(levels, 1, 1, priority=1)

    assert levels.next(0) == [*urgent, normal[0]]
    assert levels.next(0) == normal[1:]
    assert len(levels) == 0


def test_delay_holds_a_batch_until_its_oldest_request_waited_long_enough():
    delaying = batcher(8, max_queue_delay_us=100)
    first = add_rows(delaying, 1, now_ns=5 * US)
    assert delaying.next(5 * US) == 105 * US
    second = add_rows(delaying, 1, now_ns=50 * US)

    assert delaying.next(50 * US) == 105 * US
    assert delaying.next(105 * US - 1) == 105 * US
    assert delaying.next(105 * US) == [*first, *second]
    assert delaying.next(106 * US) is None


def test_full_batch_does_not_wait_for_the_delay():
    delaying = batcher(4, max_queue_delay_us=100)
    requests = add_rows(delaying, 1, 1, 1)
    assert delaying.next(0) == 100 * US
    requests += add_rows(delaying, 1, 1)

    assert delaying.next(1) == requests[:4]
    assert delaying.next(1) == 100 * US


def test_batch_that_the_next_request_would_overfill_does_not_wait():
    delaying = batcher(4, max_queue_delay_us=100)
    first, second = add_rows(delaying, 3, 2)

    assert delaying.next(0) == [first]
    assert delaying.next(0) == 100 * US
    assert delaying.next(100 * US) == [second]


@pytest.mark.parametrize("preferred", [(), (4,)])
def test_request_that_shares_no_batch_does_not_wait_for_the_delay(preferred):
    batch = batcher(8, max_queue_delay_us=100, preferred_batch_sizes=preferred)
    alone = add_rows(batch, 1, batch_key=lone_batch_key())
    first = batch.next(0)
    add_rows(batch, 1, batch_key=((2, 3), False))

    assert first == alone
    assert batch.next(0) == 100 * US


def test_request_with_another_key_ends_the_hold():
    delaying = batcher(4, max_queue_delay_us=100)
    first = add_rows(delaying, 1, batch_key="a")
    assert delaying.next(0) == 100 * US
    add_rows(delaying, 1, batch_key="b")

    assert delaying.next(1) == first


def test_removal_of_the_oldest_request_prolongs_the_hold():
    delaying = batcher(4, max_queue_delay_us=100)
    (oldest,) = add_rows(delaying, 1)
    assert delaying.next(0) == 100 * US
    rest = add_rows(delaying, 1, now_ns=60 * US)
    delaying.remove(oldest)

    assert delaying.next(100 * US) == 160 * US
    assert delaying.next(160 * US) == rest


def test_take_all_ends_the_hold():
    delaying = batcher(4, max_queue_delay_us=100)
    requests = add_rows(delaying, 1)
    assert delaying.next(0) == 100 * US

    assert delaying.take_all() == requests
    assert delaying.next(1) is None


def test_preferred_size_is_sent_at_once_and_the_rest_waits():
    preferring = batcher(8, preferred_batch_sizes=(2, 4), max_queue_delay_us=100)
    requests = add_rows(preferring, 1, 1, 1, 1, 1)

    assert preferring.next(0) == requests[:4]
    assert preferring.next(0) == 100 * US
    assert preferring.next(100 * US) == requests[4:]


def test_without_delay_what_waits_is_sent_even_if_no_size_is_preferred():
    preferring = batcher(8, preferred_batch_sizes=(4,))
    requests = add_rows(preferring, 1, 1, 1)

    assert preferring.next(0) == requests


def test_batch_does_not_pass_the_largest_preferred_size_before_the_delay():
    preferring = batcher(8, preferred_batch_sizes=(4,), max_queue_delay_us=100)
    first, second = add_rows(preferring, 3, 2)

    assert preferring.next(0) == [first]
    assert preferring.next(0) == 100 * US
    assert preferring.next(100 * US) == [second]


def test_late_batch_is_sent_as_large_as_it_can_be():
    preferring = batcher(8, preferred_batch_sizes=(4,), max_queue_delay_us=100)
    requests = add_rows(preferring, 1, 1, 1, 1, 1, 1)

    assert preferring.next(100 * US) == requests


def test_request_larger_than_every_preferred_size_is_sent_alone():
    preferring = batcher(8, preferred_batch_sizes=(4,), max_queue_delay_us=100)
    large, small = add_rows(preferring, 6, 1)

    assert preferring.next(0) == [large]
    assert preferring.next(0) == 100 * US
    assert len(preferring) == 1
    assert preferring.remove(small)


def test_single_request_of_a_size_above_the_preferred_ones_does_not_wait():
    preferring = batcher(8, preferred_batch_sizes=(4,), max_queue_delay_us=100)
    large = add_rows(preferring, 6)

    assert preferring.next(0) == large


def test_urgent_arrival_can_complete_a_preferred_size_in_front():
    levels = batcher(
        8,
        preferred_batch_sizes=(4, 8),
        max_queue_delay_us=100,
        priority_levels=2,
        default_priority_level=2,
    )
    first, second = add_rows(levels, 3, 3)
    assert levels.next(0) == 100 * US
    (urgent,) = add_rows(levels, 1, priority=1)

    assert levels.next(1) == [urgent, first]
    assert levels.remove(second)


def test_hold_ends_at_the_nearest_deadline():
    policy = QueuePolicySpec(default_timeout_us=80, allow_timeout_override=True)
    delaying = batcher(8, max_queue_delay_us=100, default_queue_policy=policy)
    patient = add_rows(delaying, 1)
    assert delaying.next(0) == 80 * US
    hasty = add_rows(delaying, 1, now_ns=US, timeout_us=20)

    assert delaying.next(US) == 21 * US
    assert delaying.next(21 * US) == 80 * US
    assert delaying.expire(21 * US) == hasty
    assert delaying.next(80 * US) is None
    assert delaying.expire(80 * US) == patient
