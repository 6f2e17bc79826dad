# SPDX-License-Identifier: Apache-2.0
"""Whatever happens in whatever order: every request is answered once, and the account adds up."""

from __future__ import annotations

import random

import pytest

from pytriton.base.errors import CancelledError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.runtime.executor.inference import Outcome
from tests.fakes import response


def settings(dice):
    policy = QueuePolicySpec(default_timeout_us=dice.choice([0, 2000]))
    decoupled = dice.random() < 0.4
    return {
        "instances": dice.randint(1, 3),
        "concurrency": dice.choice([1, 4]) if decoupled else 1,
        "decoupled": decoupled,
        "max_batch_size": dice.choice([1, 3, 8]),
        "batcher": BatcherSpec(
            max_queue_delay_us=dice.choice([0, 1000]),
            preserve_ordering=dice.random() < 0.5,
            default_queue_policy=policy,
        ),
        "batches": dice.random() < 0.8,
    }


def act(dice, scene, stream):
    """Do one thing that can happen to a model."""
    what = dice.random()
    alive = scene.model.instances
    busy = [(one, batch) for one in alive for batch in one.running]
    if what < 0.35 and alive:
        scene.submit(dice.randint(1, 3))
    elif what < 0.45 and scene.inferences:
        scene.model.cancel(dice.choice(scene.inferences))
    elif what < 0.55:
        scene.loop.advance(dice.choice([0.0005, 0.003]))
    elif what < 0.57 and len(alive) > 1:
        dice.choice(alive).die()
    elif what < 0.59 and alive:
        refusing = dice.choice(alive)
        refusing.refusal = UnavailableError("no room") if refusing.refusal is None else None
    elif what < 0.75 and busy and stream:
        instance, batch = dice.choice(busy)
        position = dice.choice(sorted(batch.open_positions))
        if batch.inferences[position].is_cancelled:
            instance.report(batch, [Outcome(position, None, CancelledError(""))])
        else:
            instance.report(batch, [Outcome(position, response(), is_final=False)])
    elif busy:
        instance, batch = dice.choice(busy)
        dice.choice([instance.finish, instance.finish, instance.fail])(batch)


@pytest.mark.parametrize("seed", range(60))
def test_every_request_is_answered_exactly_once(scene, seed):
    dice = random.Random(seed)
    chosen = settings(dice)
    one = scene(**chosen)
    for _ in range(200):
        act(dice, one, chosen["decoupled"])
        one.loop.run()
        one.model.check_integrity()
    for instance in one.model.instances:
        instance.refusal = None
    if dice.random() < 0.5:
        while busy := [each for each in one.model.instances if each.running]:
            busy[0].finish()
            one.loop.advance(0.002)
    one.model.stop()
    one.loop.advance(1)

    one.check_all_answered()
    if chosen["batcher"].preserve_ordering and chosen["batches"] and not chosen["decoupled"]:
        answered = [number for number in one.log if one.sink(number).responses]
        assert answered == sorted(answered)
