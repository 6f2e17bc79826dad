# SPDX-License-Identifier: Apache-2.0
"""A quick model with several instances gathers requests while one of them executes others."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.model_spec import BatcherSpec, ModelSpec, ModelTensor
from pytriton.serving.engine.batch_start import BatchStart
from pytriton.serving.engine.stats import ModelStatistics

QUICK_NS = 20_000
SLOW_NS = 5_000_000


def policy(max_batch_size: int = 64, *, work_ns: int = QUICK_NS, batches: bool = True):
    tensor = ModelTensor(name="x", dtype=dtypes.FP32, dims=(1,), shape=(-1, 1))
    spec = ModelSpec(
        name="m",
        version=1,
        platform="",
        max_batch_size=max_batch_size,
        inputs={"x": tensor},
        outputs={"y": tensor},
        required_inputs=frozenset({"x"}),
        batcher=BatcherSpec() if batches else None,
    )
    made = BatchStart(spec, ModelStatistics(), (), (), None, None)
    if work_ns:
        made.learn(4, work_ns)
    return made


@pytest.mark.parametrize(
    "waiting, busy, gathers",
    [
        (1, 0, False),  # nothing is executed: there is no answer to wait for
        (1, 1, True),
        (63, 1, True),
        (64, 1, False),  # a full batch
        (63, 8, True),
        (64, 8, False),
    ],
)
def test_quick_model_waits_for_an_answer_or_a_full_batch(waiting, busy, gathers):
    assert policy().gathers_more(waiting, busy) is gathers


def test_model_uses_as_many_instances_as_can_be_kept_busy():
    longer = policy(work_ns=350_000)  # as long as sending three and a half batches

    assert [longer.gathers_more(1, busy) for busy in range(6)] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("work_ns", [0, SLOW_NS])
def test_slow_or_unknown_model_uses_every_instance_at_once(work_ns):
    assert not policy(work_ns=work_ns).gathers_more(1, 1)


def test_model_that_became_slow_uses_every_instance_at_once():
    changed = policy()
    changed.learn(1, SLOW_NS)

    assert not changed.gathers_more(1, 1)


def test_model_without_batching_does_not_wait():
    assert not policy(batches=False).gathers_more(1, 1)


def quick(one, monkeypatch):
    """Let a model count as quick, whatever its fake batches take."""
    one.model._start.learn(1, QUICK_NS)
    monkeypatch.setattr(BatchStart, "learn", lambda *_: None)
    return one


def test_requests_are_gathered_for_the_whole_time_after_each_batch(scene, monkeypatch):
    one = quick(scene(max_batch_size=8, instances=2), monkeypatch)
    one.submit()
    one.submit()  # gathered from now on
    one.loop.advance(0.0009)
    one.instances[0].finish()  # the second request goes to the other one
    one.submit()
    one.loop.advance(0.0009)
    assert [instance.sizes for instance in one.instances] == [[1], [1]]

    one.loop.advance(0.0001)

    assert [instance.sizes for instance in one.instances] == [[1, 1], [1]]


def test_stopped_model_starts_nothing_that_was_gathered(scene, monkeypatch):
    one = quick(scene(max_batch_size=8, instances=2), monkeypatch)
    one.submit(2)
    one.submit()
    one.model.stop()
    one.loop.advance(1)

    one.check_all_answered()


def test_much_waiting_work_is_worth_another_instance_whatever_the_last_batch_took():
    learned = policy(max_batch_size=1000)
    learned.learn(20, 80_000)  # 4 us for each request
    assert learned.gathers_more(49, 3)

    assert not learned.gathers_more(50, 3)
