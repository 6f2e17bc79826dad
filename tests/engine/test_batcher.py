# SPDX-License-Identifier: Apache-2.0
"""Which requests the batchers send together and when, with a clock that the tests turn."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.base.messages import lone_batch_key
from pytriton.base.model_spec import BatcherSpec, ModelSpec
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


def test_delay_holds_a_batch_until_its_oldest_request_waited_long_enough():
    delaying = batcher(8, max_queue_delay_us=100)
    first = add_rows(delaying, 1, now_ns=5 * US)
    assert delaying.next(5 * US) == 105 * US
    second = add_rows(delaying, 1, now_ns=50 * US)

    assert delaying.next(50 * US) == 105 * US
    assert delaying.next(105 * US - 1) == 105 * US
    assert delaying.next(105 * US) == [*first, *second]
    assert delaying.next(106 * US) is None


@pytest.mark.parametrize("preferred", [(), (4,)])
def test_request_that_shares_no_batch_does_not_wait_for_the_delay(preferred):
    batch = batcher(8, max_queue_delay_us=100, preferred_batch_sizes=preferred)
    alone = add_rows(batch, 1, batch_key=lone_batch_key())
    first = batch.next(0)
    add_rows(batch, 1, batch_key=((2, 3), False))

    assert first == alone
    assert batch.next(0) == 100 * US


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
