# SPDX-License-Identifier: Apache-2.0
"""Models that call one another at random, and what happens to them in the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.served_model import WaitsFor
from pytriton.serving.repository.services.bls import BlockedBatch, WaitGraph
from tests.fakes import inference


@dataclass(eq=False)
class SimInstance:
    """Runs a request in each slot; with more than one slot, their batches are coroutines."""

    slots: int = 1
    batch_count: int = 0
    runs: dict[int, Inference] = field(default_factory=dict)  # by batch
    awaited: dict[int, set[Inference]] = field(default_factory=dict)  # by batch
    blocked_by: Inference | None = None  # the call that a thread of all batches waits for

    @property
    def free_slots(self) -> int:
        return self.slots - len(self.runs)

    @property
    def executing_batches(self) -> list[int]:
        return list(self.runs)

    @property
    def is_async(self) -> bool:
        return self.slots > 1

    def begin(self, made: Inference) -> None:
        self.batch_count += 1
        self.runs[self.batch_count] = made
        made.instance, made.batch_id = self, self.batch_count


@dataclass(eq=False)
class SimModel:
    instances: list[SimInstance]
    queue: list[Inference] = field(default_factory=list)

    def waits_for(self, made: Inference) -> WaitsFor:
        return WaitsFor(instances=self.instances)


class Simulation:
    """Models with instances of one thread each, some of which have several slots for coroutines."""

    def __init__(self, sizes: list[list[int]], chance: random.Random) -> None:
        self.models = [SimModel([SimInstance(slots) for slots in size]) for size in sizes]
        self.graph = WaitGraph()
        self.waits: dict[Inference, BlockedBatch] = {}
        # Left `execute`, are answered by other threads, or by tasks where there are coroutines.
        self.late: list[Inference] = []
        self._chance = chance

    @property
    def instances(self) -> list[SimInstance]:
        return [instance for model in self.models for instance in model.instances]

    def able(self, *, may_await: bool) -> list[tuple[SimInstance, int]]:
        """The batches that can do something now; coroutines may, while calls are under way."""
        return [
            (instance, batch_id)
            for instance in self.instances
            if instance.blocked_by is None
            for batch_id in instance.runs
            if may_await or not instance.awaited.get(batch_id)
        ]

    def submit(self) -> Inference:
        model = self._chance.choice(self.models)
        made = inference(deadline_ns=self._chance.choice((0,) * 9 + (1,)))
        made.owner = model
        model.queue.append(made)
        return made

    def dispatch(self) -> None:
        """Let instances with free slots take what is queued, also those that are blocked."""
        for model in self.models:
            for instance in model.instances:
                while instance.free_slots and model.queue:
                    instance.begin(model.queue.pop(0))

    def call(self, instance: SimInstance, batch_id: int) -> Inference:
        """Let a batch wait for a new request, in one of the ways that it can."""
        made = self.submit()
        if not instance.is_async:
            wait = BlockedBatch(instance, batch_id, is_blocking=True)
        elif self._chance.random() < 0.2:
            wait = BlockedBatch(instance, 0, is_blocking=True)
        else:
            wait = BlockedBatch(instance, batch_id, is_blocking=False)
        if wait.is_blocking:
            instance.blocked_by = made
        else:
            instance.awaited.setdefault(batch_id, set()).add(made)
        self.waits[made] = wait
        self.graph.add(wait, made)
        return made

    def answer(self, answered: Inference) -> None:
        """End a request; what waits for it moves, unless it awaits something that is stuck."""
        wait = self.waits.pop(answered, None)
        if wait is None:
            return
        if wait.is_blocking:
            wait.instance.blocked_by = None
        else:
            wait.instance.awaited[wait.batch_id].discard(answered)
        for other in self.graph.discard(wait, answered):
            if other in self.waits and self.graph.is_deadlocked(other):
                self.refuse(other)

    def refuse(self, made: Inference) -> None:
        if made in made.owner.queue:
            made.owner.queue.remove(made)
        self.answer(made)

    def leave(self, instance: SimInstance, batch_id: int, *, is_late: bool = False) -> None:
        """Return from `execute`, maybe before the answer."""
        ended = instance.runs.pop(batch_id)
        if is_late:
            self.late.append(ended)
        else:
            self.answer(ended)

    def step(self, *, checks: bool = True) -> None:
        """Something happens, at random; a call that is stuck is refused."""
        self.dispatch()
        action = self._chance.random()
        can_call, can_leave = self.able(may_await=True), self.able(may_await=False)
        if action < 0.3 or not can_call:
            self.submit()
        elif action < 0.7 or not can_leave:
            self._call_or_refuse(*self._chance.choice(can_call), checks=checks)
        else:
            self.leave(*self._chance.choice(can_leave), is_late=self._chance.random() < 0.3)
        if self._chance.random() < 0.3:
            self.answer_late(1)

    def answer_late(self, count: int) -> bool:
        """Answer some of those whose `execute` has returned; whether there were any."""
        able = [each for each in self.late if _can_answer(each.instance)]
        for each in able[:count]:
            self.late.remove(each)
            self.answer(each)
        return bool(able)

    def _call_or_refuse(self, instance: SimInstance, batch_id: int, *, checks: bool) -> None:
        made = self.call(instance, batch_id)
        was_stuck = self.graph.is_deadlocked(made)
        # A free slot may be one of an instance that is blocked, so that is looked at afterwards.
        self.dispatch()
        is_stuck = self.graph.is_deadlocked(made)
        if checks:
            assert is_stuck or not was_stuck
            assert is_stuck == (made not in self.answered_in_the_end())
        if is_stuck:
            self.refuse(made)

    def finish(self) -> None:
        has_moved = True
        while has_moved:
            self.dispatch()
            expired = [each for model in self.models for each in model.queue if each.deadline_ns]
            can_leave = self.able(may_await=False)
            for each in expired:
                self.refuse(each)
            if can_leave:
                self.leave(*self._chance.choice(can_leave))
            has_moved = self.answer_late(len(self.late)) or bool(expired or can_leave)

    def answered_in_the_end(self) -> set[Inference]:
        """Run a copy on, without new calls, until nothing moves: what was answered.

        A batch that waits for several calls goes on when it has one answer, or when the thread goes
        on that it needs first. What it does then is looked at when it happens.
        """
        answered = {each for each in self.late if not each.instance.is_async}
        queues = {model: list(model.queue) for model in self.models}
        for queue in queues.values():
            answered.update(each for each in queue if each.deadline_ns)
        runs = {instance: dict(instance.runs) for instance in self.instances}
        for each in self.late:
            runs[each.instance][each.batch_id] = each
        fresh = -1  # numbers of batches that begin in the copy
        has_moved = True
        while has_moved:
            has_moved = False
            for model, queue in queues.items():
                for instance in model.instances:
                    running = runs[instance]
                    for batch_id in [each for each in running if _moves(instance, each, answered)]:
                        answered.add(running.pop(batch_id))
                        has_moved = True
                    executing = [each for each in running.values() if each not in self.late]
                    while queue and len(executing) < instance.slots:
                        executing.append(queue[0])
                        running[fresh] = queue.pop(0)
                        fresh -= 1
                        has_moved = True
        return answered


def _can_answer(instance: SimInstance) -> bool:
    return instance.blocked_by is None or not instance.is_async


def _moves(instance: SimInstance, batch_id: int, answered: set[Inference]) -> bool:
    if instance.blocked_by is not None:
        return instance.blocked_by in answered
    awaited = instance.awaited.get(batch_id)
    return not awaited or not awaited.isdisjoint(answered)
