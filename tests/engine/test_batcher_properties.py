# SPDX-License-Identifier: Apache-2.0
"""Random arrivals against a batcher and, beside it, a naive model of the same queue.

The model keeps plain lists and decides from prefix sums; after every step both must agree on who
runs, who is rejected and when to ask again.
"""

from __future__ import annotations

import random
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton.base.errors import UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec, QueueTimeoutAction
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.batcher import DelayingBatcher, GreedyBatcher
from tests.fakes import inference

MAX_ROWS = 8


policies = st.builds(
    QueuePolicySpec,
    timeout_action=st.sampled_from(QueueTimeoutAction),
    default_timeout_us=st.sampled_from((0, 2, 5)),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from((0, 0, 0, 3)),
)


@st.composite
def specs(draw: st.DrawFn) -> BatcherSpec:
    levels = draw(st.integers(0, 3))
    return BatcherSpec(
        preferred_batch_sizes=tuple(draw(st.sets(st.integers(2, MAX_ROWS), max_size=2))),
        max_queue_delay_us=draw(st.sampled_from((0, 3, 6))),
        priority_levels=levels,
        default_priority_level=draw(st.integers(1, levels)) if levels else 0,
        default_queue_policy=draw(policies),
        queue_policies={level: draw(policies) for level in range(1, levels, 2)},
    )


class QueueModel:
    """The queue as lists, with the rules in their plainest form."""

    def __init__(self, spec: BatcherSpec) -> None:
        self.spec = spec
        self.waiting: list[tuple[int, Inference]] = []  # with the level, in order of arrival
        self.delayed: list[tuple[int, Inference]] = []  # in order of their deadlines

    def level(self, each: Inference) -> int:
        in_range = 1 <= each.request.fields.priority <= self.spec.priority_levels
        return each.request.fields.priority if in_range else self.spec.default_priority_level

    def policy(self, level: int) -> QueuePolicySpec:
        return self.spec.queue_policies.get(level, self.spec.default_queue_policy)

    def is_full(self, each: Inference) -> bool:
        level = self.level(each)
        size = sum(1 for found, _ in self.waiting + self.delayed if found == level)
        return 0 < self.policy(level).max_queue_size <= size

    def deadline(self, each: Inference, now_ns: int) -> int:
        policy = self.policy(self.level(each))
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and each.request.fields.timeout_us and timeout_us:
            timeout_us = min(timeout_us, each.request.fields.timeout_us)
        return now_ns + 1000 * timeout_us if timeout_us else 0

    def in_order(self) -> list[Inference]:
        ranked = [(level, 0, each) for level, each in self.waiting]
        ranked += [(level, 1, each) for level, each in self.delayed]
        return [each for *_, each in sorted(ranked, key=lambda entry: entry[:2])]

    def discard(self, gone: list[Inference]) -> None:
        names = {each.request.fields.id for each in gone}
        self.waiting = [entry for entry in self.waiting if entry[1].request.fields.id not in names]
        self.delayed = [entry for entry in self.delayed if entry[1].request.fields.id not in names]

    def expire(self, now_ns: int) -> list[Inference]:
        due = [entry for entry in self.waiting if 0 < entry[1].deadline_ns <= now_ns]
        due.sort(key=lambda entry: entry[1].deadline_ns)
        self.discard([each for _, each in due])
        delays = {level for level, _ in due if self.policy(level).timeout_action}
        self.delayed += [entry for entry in due if entry[0] in delays]
        return [each for level, each in due if level not in delays]

    def decide(self, now_ns: int) -> list[Inference] | int | None:
        order = self.in_order()
        is_greedy = not set(self.spec.preferred_batch_sizes) - {MAX_ROWS}
        if not order or (is_greedy and not self.spec.max_queue_delay_us):
            return self.greedy_batch(order) or None
        sums = [0]
        for each in order:
            if (
                sums[-1] + max(each.request.rows, 1) > MAX_ROWS
                or each.request.batch_key != order[0].request.batch_key
            ):
                break
            sums.append(sums[-1] + max(each.request.rows, 1))
        length = len(sums) - 1
        delay_ns = 1000 * self.spec.max_queue_delay_us
        sizes = self.spec.preferred_batch_sizes or (MAX_ROWS,)
        oldest_ns = min(each.queued_ns for each in order[:length])
        if delay_ns and now_ns >= oldest_ns + delay_ns:
            return order[:length]
        exact = [count for count in range(1, length + 1) if sums[count] in sizes]
        below = [count for count in range(1, length + 1) if sums[count] <= max(sizes)]
        if exact:
            return order[: exact[-1]]
        if sums[length] > max(sizes):
            return order[: max(below, default=1)]
        if delay_ns == 0 or length < len(order):
            return order[:length]
        deadlines = [each.deadline_ns for _, each in self.waiting if each.deadline_ns]
        return min([oldest_ns + delay_ns, *deadlines])

    def greedy_batch(self, order: list[Inference]) -> list[Inference]:
        """As many as fit; those with another key are skipped, but only at one level."""
        places = {each.request.fields.id: (level, 0) for level, each in self.waiting}
        places |= {each.request.fields.id: (level, 1) for level, each in self.delayed}
        batch: list[Inference] = []
        total = 0
        skipped_at = None
        for each in order:
            place = places[each.request.fields.id]
            if skipped_at is not None and place != skipped_at:
                break
            if each.request.batch_key != order[0].request.batch_key:
                skipped_at = place
                continue
            total += max(each.request.rows, 1)
            if batch and total > MAX_ROWS:
                break
            batch.append(each)
        return batch


class Simulation:
    """Arrivals, cancellations, deadlines and free instances, in an order drawn from a seed."""

    def __init__(self, spec: BatcherSpec, seed: int) -> None:
        is_greedy = not spec.max_queue_delay_us and not set(spec.preferred_batch_sizes) - {MAX_ROWS}
        self.batcher = (GreedyBatcher if is_greedy else DelayingBatcher)(spec, MAX_ROWS)
        self.model = QueueModel(spec)
        self.random = random.Random(seed)
        self.now_ns = 1000
        self.added: list[str] = []
        self.left: list[str] = []  # every request once: run, rejected or removed

    def step(self) -> None:
        actions = (self.add, self.add, self.add, self.wait, self.run, self.oversleep, self.cancel)
        self.random.choice(actions)()
        self.batcher.check_integrity()
        waiting = self.model.in_order()
        deadlines = [each.deadline_ns for _, each in self.model.waiting if each.deadline_ns]

        assert len(self.batcher) == len(waiting)
        assert sorted(self.left + [each.request.fields.id for each in waiting]) == sorted(
            self.added
        )
        assert self.batcher.next_deadline_ns() == min(deadlines, default=0)

    def add(self) -> None:
        each = inference(
            id=str(len(self.added)),
            rows=self.random.choice((0, 1, 1, 2, 2, 3, 5, MAX_ROWS)),
            batch_key=self.random.choice("aaaaab"),
            priority=self.random.randint(0, 4),
            timeout_us=self.random.randint(0, 6),
        )
        try:
            self.batcher.add(each, self.now_ns)
        except UnavailableError:
            assert self.model.is_full(each)
            return

        assert not self.model.is_full(each)
        assert each.queued_ns == self.now_ns
        assert each.deadline_ns == self.model.deadline(each, self.now_ns)
        self.added.append(each.request.fields.id)
        self.model.waiting.append((self.model.level(each), each))

    def wait(self) -> None:
        """Time passes; the owner reacts to every deadline exactly when it comes."""
        until_ns = self.now_ns + 1000 * self.random.randint(0, 3)
        while 0 < self.batcher.next_deadline_ns() <= until_ns:
            self.now_ns = self.batcher.next_deadline_ns()
            expected = self.model.expire(self.now_ns)

            assert self.batcher.expire(self.now_ns) == expected
            assert self.batcher.next_deadline_ns() != self.now_ns
            self.left += [each.request.fields.id for each in expected]
        self.now_ns = until_ns

    def oversleep(self) -> None:
        """Time passes and nobody reacts; `next` must still not run what has expired."""
        self.now_ns += 1000 * self.random.randint(0, 4)
        self.run()

    def run(self) -> None:
        rejected = self.model.expire(self.now_ns)
        expected = self.model.decide(self.now_ns)

        assert self.batcher.next(self.now_ns) == expected
        assert self.batcher.expire(self.now_ns) == rejected
        self.left += [each.request.fields.id for each in rejected]
        if isinstance(expected, list):
            assert sum(max(each.request.rows, 1) for each in expected) <= MAX_ROWS
            assert len({each.request.batch_key for each in expected}) == 1
            self.model.discard(expected)
            self.left += [each.request.fields.id for each in expected]

    def cancel(self) -> None:
        waiting = self.model.in_order()
        if waiting:
            each = self.random.choice(waiting)

            assert self.batcher.remove(each)
            assert not self.batcher.remove(each)
            self.model.discard([each])
            self.left.append(each.request.fields.id)


@given(spec=specs(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=300)
def test_batcher_agrees_with_the_model(spec, seed):
    simulation = Simulation(spec, seed)
    for _ in range(100):
        simulation.step()


@given(
    rows=st.lists(st.integers(0, MAX_ROWS), min_size=120, max_size=120),
    keys=st.lists(st.sampled_from("aaaaaaab"), min_size=120, max_size=120),
    delay_us=st.sampled_from((0, 50)),
)
@settings(max_examples=50)
def test_standing_backlog_fills_every_batch(rows, keys, delay_us):
    spec = BatcherSpec(max_queue_delay_us=delay_us)
    batcher = (DelayingBatcher if delay_us else GreedyBatcher)(spec, MAX_ROWS)
    backlog = [inference(rows=count, batch_key=key) for count, key in zip(rows, keys, strict=True)]
    for each in backlog:
        batcher.add(each, 0)
    left = list(backlog)
    while len(left) > MAX_ROWS:
        batch = batcher.next(0)
        assert isinstance(batch, list)
        assert batch[0] is left[0]  # nobody waits for ever
        fitting = [each for each in left if each.request.batch_key == batch[0].request.batch_key]
        if delay_us:
            fitting = list(takewhile(fitting.__contains__, left))
        total = sum(max(each.request.rows, 1) for each in batch)

        assert batch == fitting[: len(batch)]
        for following in fitting[len(batch) : len(batch) + 1]:
            assert total + max(following.request.rows, 1) > MAX_ROWS
        left = [each for each in left if each not in batch]
