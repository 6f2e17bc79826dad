# SPDX-License-Identifier: Apache-2.0
"""The graph of who waits for whom, against a simulation of what would happen without new calls."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton.messages import InferRequest
from pytriton.repository.deadlock import WaitGraph
from tests.fakes import request


@dataclass(eq=False)
class SimInstance:
    batch_id: int = 0
    runs: InferRequest | None = None
    waits_for: InferRequest | None = None


@dataclass(eq=False)
class SimModel:
    instances: list[SimInstance]
    missing_instances: int = 0
    queue: list[InferRequest] = field(default_factory=list)


class Simulation:
    """Models with instances of one thread each; calls in them wait on that thread."""

    def __init__(self, sizes: list[int], chance: random.Random) -> None:
        self.models = [SimModel([SimInstance() for _ in range(size)]) for size in sizes]
        self.graph = WaitGraph()
        self.late: list[InferRequest] = []  # left `execute`, are answered by other threads
        self._chance = chance

    @property
    def instances(self) -> list[SimInstance]:
        return [instance for model in self.models for instance in model.instances]

    def submit(self) -> InferRequest:
        model = self._chance.choice(self.models)
        made = request(deadline_ns=self._chance.choice((0,) * 9 + (1,)))
        made.model = model
        model.queue.append(made)
        return made

    def dispatch(self) -> bool:
        """Let free instances take what is queued."""
        has_moved = False
        for model in self.models:
            for instance in model.instances:
                if instance.runs is None and model.queue:
                    instance.runs = model.queue.pop(0)
                    instance.batch_id += 1
                    instance.runs.instance = instance
                    instance.runs.batch_id = instance.batch_id
                    has_moved = True
        return has_moved

    def call(self, instance: SimInstance) -> InferRequest:
        """Let a running instance wait for a new request."""
        instance.waits_for = self.submit()
        self.graph.add(instance, instance.batch_id, instance.waits_for)
        return instance.waits_for

    def answer(self, answered: InferRequest) -> None:
        """End a request; whoever waits for it runs again."""
        for instance in self.instances:
            if instance.waits_for is answered:
                instance.waits_for = None
                self.graph.discard(instance, answered)

    def leave(self, instance: SimInstance, *, is_late: bool) -> None:
        """Return from `execute`, maybe before the answer."""
        ended, instance.runs = instance.runs, None
        if is_late:
            self.late.append(ended)
        else:
            self.answer(ended)

    def step(self) -> None:
        """Something happens, at random; a call that is stuck is taken back."""
        self.dispatch()
        running = [each for each in self.instances if each.runs and not each.waits_for]
        action = self._chance.random()
        if action < 0.3 or not running:
            self.submit()
        elif action < 0.7:
            instance = self._chance.choice(running)
            made = self.call(instance)
            self.check(made)
            if self.graph.is_stuck(made):
                made.model.queue.remove(made)
                self.answer(made)
        else:
            self.leave(self._chance.choice(running), is_late=self._chance.random() < 0.3)
        if self.late and self._chance.random() < 0.3:
            self.answer(self.late.pop())

    def check(self, made: InferRequest) -> None:
        """The graph must say what a run to the end of a copy shows."""
        waiting = [(each, each.waits_for) for each in self.instances if each.waits_for]
        assert self.graph.is_stuck(made) == (made not in self.answered_in_the_end())
        assert waiting == [(each, each.waits_for) for each in self.instances if each.waits_for]

    def answered_in_the_end(self) -> set[InferRequest]:
        """Run a copy on, without new calls, until nothing moves: what was answered."""
        queues = [list(model.queue) for model in self.models]
        runs = {each: each.runs for each in self.instances}
        answered = set(self.late)
        for queue in queues:
            answered.update(each for each in queue if each.deadline_ns)
        has_moved = True
        while has_moved:
            has_moved = False
            for model, queue in zip(self.models, queues, strict=True):
                for instance in model.instances:
                    blocker = instance.waits_for if runs[instance] is instance.runs else None
                    if runs[instance] and (blocker is None or blocker in answered):
                        answered.add(runs[instance])
                        runs[instance] = None
                        has_moved = True
                    if runs[instance] is None and queue:
                        runs[instance] = queue.pop(0)
                        has_moved = True
        return answered


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 1 << 30))
def test_graph_says_what_a_simulation_shows(sizes, seed):
    simulation = Simulation(sizes, random.Random(seed))
    for _ in range(60):
        simulation.step()


def test_everybody_is_answered_when_stuck_calls_are_refused():
    """What the graph lets through never leaves a request waiting for ever."""
    for seed in range(30):
        simulation = Simulation([1, 2, 2], random.Random(seed))
        for _ in range(80):
            simulation.step()
        waiting = {each.waits_for for each in simulation.instances if each.waits_for}

        assert waiting <= simulation.answered_in_the_end()


def test_request_of_a_batch_before_the_one_that_waits_is_answered_by_others():
    instance = SimInstance()
    model = SimModel([instance])
    early, late = request(), request()
    for made, batch_id in ((early, 1), (late, 2)):
        made.model, made.instance, made.batch_id = model, instance, batch_id
    awaited = request()
    awaited.model = model
    graph = WaitGraph()
    graph.add(instance, 2, awaited)

    assert graph.is_stuck(awaited)
    assert graph.is_stuck(late)
    assert not graph.is_stuck(early)


def test_instance_with_several_calls_moves_when_one_is_answered():
    caller, other = SimInstance(), SimInstance()
    stuck, runs = request(), request()
    stuck.model = SimModel([caller])
    runs.model, runs.instance = SimModel([other]), other
    graph = WaitGraph()
    graph.add(caller, 1, stuck)
    assert graph.is_stuck(stuck)

    graph.add(caller, 1, runs)

    assert not graph.is_stuck(stuck)
    assert repr(graph) == "<WaitGraph 1 instances wait>"


def test_graph_forgets_what_is_not_waited_for():
    graph, instance, made = WaitGraph(), SimInstance(), request()
    graph.discard(instance, made)
    graph.add(instance, 1, made)
    graph.discard(instance, made)

    assert len(graph) == 0
