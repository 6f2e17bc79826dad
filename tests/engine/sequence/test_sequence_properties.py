# SPDX-License-Identifier: Apache-2.0
"""Random arrivals, cancellations, deaths and times against a scheduler of sequences.

Beside it, plain lists say what has to be true after every step: no sequence is split, reordered or
in two places, no slot is lost, nothing that could run waits, and every request ends once.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton.base.errors import InvalidArgumentError, ServerError, UnavailableError
from pytriton.base.model_spec import SequenceSpec
from pytriton.runtime.executor.inference import CLOSED_SINK, Outcome
from pytriton.serving.engine.scheduling import Dispatch
from pytriton.serving.engine.sequence.live_sequence import (
    TRANSITIONS,
    LiveSequence,
    SequencePhase,
)
from pytriton.serving.engine.sequence.scheduler import END, START
from pytriton.serving.engine.sequence.strategies import make_sequence_scheduler
from tests.fakes import FakeInstance, inference, model_spec, response

IDLE_NS = 10_000
IDS = (1, 2, 3, 4, 5, "1", "b", "c")


@st.composite
def specs(draw):
    max_batch_size = draw(st.sampled_from((0, 1, 2, 3, 5)))
    is_direct = draw(st.booleans())
    sequence = SequenceSpec(
        idle_us=IDLE_NS // 1000,
        max_candidates=None if is_direct else draw(st.integers(0, 4)),
        preferred_batch_sizes=() if is_direct else tuple(draw(st.sets(st.integers(1, 4)))),
        max_queue_delay_us=draw(st.sampled_from((0, 2))),
        preserve_ordering=not is_direct and draw(st.booleans()),
        minimum_slot_utilization=draw(st.sampled_from((0.0, 0.5, 1.0))) if is_direct else 0.0,
        max_queue_size=draw(st.sampled_from((0, 0, 2))),
    )
    decoupled = draw(st.booleans())
    return model_spec(max_batch_size, batches=False, sequence=sequence, decoupled=decoupled)


@contextmanager
def checked_transitions():
    """Fail on a change of a sequence's state that the table does not have."""
    slot = LiveSequence.__dict__["state"]

    def change(sequence, state):
        try:
            current = slot.__get__(sequence)
        except AttributeError:  # it is new
            current = None
        assert current is None or state in TRANSITIONS[current], (current, state)
        slot.__set__(sequence, state)

    with patch.object(LiveSequence, "state", property(slot.__get__, change)):
        yield


class Tenancy:
    """What the test knows of a sequence, from its first request until its slot is free."""

    def __init__(self, correlation_id):
        self.id = correlation_id
        self.waiting = []
        self.running = None
        self.instance = None
        self.slot = None
        self.is_closed = False
        self.idle_ns = None  # since when


class Simulation:
    def __init__(self, spec, seed):
        self.spec = spec
        self.is_direct = spec.sequence.max_candidates is None
        self.slot_count = spec.sequence.max_candidates or max(1, spec.max_batch_size)
        self.random = random.Random(seed)
        self.scheduler = make_sequence_scheduler(spec)
        self.now_ns = 1000
        self.instances = []
        self.open = {}  # tenancies by id
        self.tenancies = []
        self.owners = {}  # tenancies by request
        self.ended = {}  # how often each request has ended
        for _ in range(self.random.randint(1, 3)):
            self.add_instance()

    # What happens

    def step(self):
        actions = [self.add] * 6 + [self.finish] * 5 + [self.wait, self.wait, self.cancel]
        actions += [self.kill, self.add_instance] if self.random.random() < 0.1 else []
        self.random.choice(actions)()
        self.pump()
        self.check()

    def add(self, correlation_id=None, flags=None):
        correlation_id = correlation_id or self.random.choice(IDS)
        tenancy = self.open.get(correlation_id)
        if flags is None:
            flags = self.random.choice((0, 0, 0, END))
            if tenancy is None or self.random.random() < 0.05:
                flags |= self.random.choice((START, START, START, 0))
        timeout_us = self.random.choice((0, 0, 4))
        key = self.random.choice("aab")
        each = inference(
            correlation_id=correlation_id, flags=flags, timeout_us=timeout_us, batch_key=key
        )
        queue_size = len(self.scheduler._backlog)
        try:
            self.scheduler.add(each, self.now_ns)
        except InvalidArgumentError:
            assert tenancy is None
            assert not flags & START
            return
        except UnavailableError:
            assert tenancy is None
            assert self.spec.sequence.max_queue_size
            return
        if tenancy is None:
            assert flags & START
            assert not queue_size or len(self.scheduler._backlog) == queue_size + 1
            tenancy = self.open[correlation_id] = Tenancy(correlation_id)
            self.tenancies.append(tenancy)
        tenancy.idle_ns = None
        tenancy.waiting.append(each)
        self.owners[each] = tenancy
        self.ended[each] = 0
        if flags & END:
            self.close(tenancy)

    def finish(self):
        busy = [(one, batch) for one in self.instances for batch in one.running]
        if not busy:
            return
        instance, batch = self.random.choice(busy)
        positions = sorted(batch.open_positions)
        if self.spec.decoupled:
            positions = self.random.sample(positions, self.random.randint(1, len(positions)))
        is_final = not self.spec.decoupled or self.random.random() < 0.7
        self.report(instance, batch, positions, is_final=is_final)

    def report(self, instance, batch, positions, *, is_final=True):
        outcomes = [Outcome(position, response(), is_final=is_final) for position in positions]
        if is_final:
            batch.open_positions -= set(positions)
        if not batch.open_positions:
            instance.running.remove(batch)
        passed_on = self.scheduler.finished(batch, outcomes, self.now_ns)
        real = [p for p in positions if batch.inferences[p] in self.owners]
        assert [outcome.position for outcome in passed_on] == real
        for position in real if is_final else ():
            self.end(batch.inferences[position])

    def wait(self):
        self.now_ns += self.random.choice((1000, 3000, 12_000))

    def cancel(self):
        if self.owners:
            self.cancel_one(self.random.choice(list(self.owners)))

    def cancel_one(self, each):
        tenancy = self.owners[each]
        is_in_backlog = self.scheduler._owners[each].state is SequencePhase.BACKLOG
        removed = self.scheduler.remove(each)
        if tenancy.running is each:
            assert not removed
            return
        first = 0 if is_in_backlog else tenancy.waiting.index(each)
        assert list(removed) == tenancy.waiting[first:]
        self.drop_waiting(tenancy, first)

    def kill(self):
        if len(self.instances) < 2:
            return
        instance = self.random.choice(self.instances)
        instance.is_lost = True
        if self.random.random() < 0.5:
            self.forget(instance)
        for batch in list(instance.running):
            self.report(instance, batch, sorted(batch.open_positions))
        self.forget(instance)

    def forget(self, instance):
        backlog = list(self.scheduler._backlog._sequences)
        refusals = self.scheduler.remove_instance(instance)
        assert list(self.scheduler._backlog._sequences) == backlog
        if instance not in self.instances:
            assert not refusals
            return
        self.instances.remove(instance)
        refused = {refusal.inference for refusal in refusals}
        for tenancy in self.tenancies:
            waiting = set(tenancy.waiting)
            if waiting and waiting <= refused:
                assert tenancy.instance in {None, instance}
                self.drop_waiting(tenancy)
            elif tenancy.instance is instance:
                assert not waiting
                self.close(tenancy)

    def add_instance(self):
        instance = FakeInstance("i", None, self.random.choice((1, 1, 3)))
        self.instances.append(instance)
        self.scheduler.add_instance(instance)

    # What the scheduler decides

    def pump(self):
        while True:
            free = [one for one in self.instances if one.free_slots]
            self.random.shuffle(free)
            decision = self.scheduler.next(self.now_ns, free) if free else None
            self.end_idle()
            if not isinstance(decision, Dispatch):
                break
            self.dispatch(decision)
        assert decision is None or decision > self.now_ns
        deadline_ns = self.scheduler.next_deadline_ns()
        if 0 < deadline_ns <= self.now_ns:
            self.expire()
        self.wake_ns = decision

    def expire(self):
        expired = {refusal.inference for refusal in self.scheduler.expire(self.now_ns)}
        self.end_idle()
        for tenancy in self.tenancies:
            if expired & set(tenancy.waiting):
                assert set(tenancy.waiting) <= expired
                assert tenancy.instance is None
                self.drop_waiting(tenancy)

    def end_idle(self):
        for tenancy in list(self.open.values()):
            if tenancy.idle_ns is not None and self.now_ns >= tenancy.idle_ns + IDLE_NS:
                self.close(tenancy)

    def dispatch(self, decision):
        instance = decision.instance
        assert instance in self.instances
        nulls = [each for each in decision.inferences if each.sink is CLOSED_SINK]
        real = [each for each in decision.inferences if each.sink is not CLOSED_SINK]
        assert len(nulls) == decision.null_count
        assert self.is_direct or not nulls
        assert decision.inferences[-1] in real  # no null request at the end
        assert len(decision.inferences) <= max(1, self.spec.max_batch_size)
        assert len({each.request.batch_key for each in real}) == 1
        if (self.is_direct and not self.spec.decoupled) or self.spec.sequence.preserve_ordering:
            assert instance.is_idle
        for position, each in enumerate(decision.inferences):
            if each in real:
                self.begin(self.owners[each], each, instance, position)
        instance.execute(decision.inferences, self.now_ns)

    def begin(self, tenancy, each, instance, position):
        assert tenancy.running is None
        assert tenancy.waiting.pop(0) is each
        tenancy.running = each
        assert tenancy.instance in {None, instance}
        tenancy.instance = instance
        if self.is_direct:
            assert tenancy.slot in {None, position}
            tenancy.slot = position

    # What the test notes

    def end(self, each):
        tenancy = self.owners.pop(each)
        self.ended[each] += 1
        if tenancy.running is each:
            tenancy.running = None
        if not tenancy.waiting and not tenancy.is_closed:
            tenancy.idle_ns = self.now_ns

    def drop_waiting(self, tenancy, first=0):
        self.close(tenancy)
        dropped, tenancy.waiting = tenancy.waiting[first:], tenancy.waiting[:first]
        for each in dropped:
            self.end(each)

    def close(self, tenancy):
        tenancy.is_closed = True
        tenancy.idle_ns = None
        if self.open.get(tenancy.id) is tenancy:
            del self.open[tenancy.id]

    # What is always true

    def check(self):
        self.scheduler.check_integrity()
        self.tenancies = [
            one for one in self.tenancies if one.waiting or one.running or not one.is_closed
        ]
        assert set(self.scheduler._open) == set(self.open)
        assert len(self.scheduler) == sum(len(one.waiting) for one in self.tenancies)
        assert all(count <= 1 for count in self.ended.values())
        for instance in self.instances:
            placed = [one for one in self.tenancies if one.instance is instance]
            assert len(placed) <= self.slot_count
            slots = [one.slot for one in placed]
            assert not self.is_direct or len(set(slots)) == len(slots)
        self.check_nothing_rests()

    def check_nothing_rests(self):
        """What waits has a reason: its instance is busy, a delay, or there is no slot."""
        ready = [one for one in self.tenancies if one.waiting and one.running is None]
        idle = [one for one in self.instances if one.is_idle and one.free_slots]
        if self.wake_ns is None and self.scheduler.next_deadline_ns() > self.now_ns:
            assert not [one for one in ready if one.instance in idle]
        for instance in idle:
            known = self.scheduler._slots[instance]
            if len(list(known.sequences)) < self.slot_count:
                assert not self.scheduler._backlog

    def finish_everything(self):
        """Let all that runs end, and time pass; then nothing may be left."""
        if not self.instances:
            self.add_instance()
        for _ in range(10_000):
            busy = [(one, batch) for one in self.instances for batch in one.running]
            for instance, batch in busy:
                self.report(instance, batch, sorted(batch.open_positions))
            if not busy and not self.owners:
                break
            self.now_ns += 1000
            self.pump()
            self.check()
        self.now_ns += 2 * IDLE_NS
        self.pump()
        self.check()


@given(specs(), st.integers(0, 2**32))
@settings(max_examples=150)
def test_every_request_runs_in_order_and_ends_once(spec, seed):
    with checked_transitions():
        simulation = Simulation(spec, seed)
        for _ in range(120):
            simulation.step()
        simulation.finish_everything()

    assert set(simulation.ended.values()) <= {1}
    assert not simulation.open
    scheduler = simulation.scheduler
    assert not scheduler._owners
    assert not scheduler._idle
    assert len(scheduler) == 0
    assert scheduler.next_deadline_ns() == 0
    for slots in scheduler._slots.values():
        assert not list(slots.sequences)
        assert slots.rank == 0


@given(specs(), st.integers(0, 2**32))
@settings(max_examples=50)
def test_stopped_scheduler_gives_back_everything_that_waits(spec, seed):
    simulation = Simulation(spec, seed)
    for _ in range(60):
        simulation.step()
    waiting = {each for one in simulation.tenancies for each in one.waiting}
    taken = simulation.scheduler.take_all()
    for instance in simulation.instances:
        for batch in instance.running:
            outcomes = [
                Outcome(position, None, ServerError("stopped")) for position in batch.open_positions
            ]
            simulation.scheduler.finished(batch, outcomes, simulation.now_ns)

    assert len(taken) == len(waiting)
    assert set(taken) == waiting
    assert not simulation.scheduler._owners
    assert not simulation.scheduler._open
    assert len(simulation.scheduler) == 0
