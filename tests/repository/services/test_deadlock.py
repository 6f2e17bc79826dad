# SPDX-License-Identifier: Apache-2.0
"""The graph of who waits for whom, against a simulation of what would happen without new calls."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton.serving.repository.services.bls import BlockedBatch, WaitGraph
from tests.fakes import inference
from tests.repository.waiting_world import SimInstance, SimModel, Simulation

SIZES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3)


def queued(model):
    made = inference()
    made.owner = model
    return made


def running(model, instance):
    made = queued(model)
    instance.begin(made)
    return made


@settings(max_examples=300)
@given(SIZES, st.integers(0, 1 << 30))
def test_graph_says_what_a_simulation_shows(sizes, seed):
    simulation = Simulation(sizes, random.Random(seed))
    for _ in range(60):
        simulation.step()


@settings(max_examples=200)
@given(SIZES, st.integers(0, 1 << 30))
def test_everybody_is_answered_when_stuck_calls_are_refused(sizes, seed):
    """Also coroutines that need the answers to all calls that they make at the same time."""
    simulation = Simulation(sizes, random.Random(seed))
    for _ in range(80):
        simulation.step(checks=False)
    simulation.finish()

    assert not simulation.waits
    assert not any(instance.runs for instance in simulation.instances)
    assert len(simulation.graph) == 0


def test_request_of_a_batch_before_the_one_that_blocks_is_answered_by_others():
    instance = SimInstance(slots=2)
    model = SimModel([instance])
    early, late = running(model, instance), running(model, instance)
    awaited = queued(model)
    graph = WaitGraph()
    graph.add(BlockedBatch(instance, 2, is_blocking=True), awaited)

    assert graph.is_deadlocked(awaited)
    assert graph.is_deadlocked(late)
    assert not graph.is_deadlocked(early)


def test_thread_of_all_coroutines_holds_up_all_batches():
    instance = SimInstance(slots=3)
    model = SimModel([instance])
    early, late = running(model, instance), running(model, instance)
    awaited = queued(model)
    graph = WaitGraph()
    graph.add(BlockedBatch(instance, 0, is_blocking=True), awaited)

    assert [graph.is_deadlocked(each) for each in (awaited, early, late)] == [True, True, True]


def test_coroutine_that_waits_for_itself_needs_a_free_slot():
    instance = SimInstance(slots=2)
    model = SimModel([instance])
    graph = WaitGraph()
    running(model, instance)
    first = queued(model)
    graph.add(BlockedBatch(instance, 1, is_blocking=False), first)
    assert not graph.is_deadlocked(first)

    instance.begin(first)
    second = queued(model)
    graph.add(BlockedBatch(instance, 2, is_blocking=False), second)

    assert graph.is_deadlocked(second)
    assert graph.is_deadlocked(first)


def test_full_instance_moves_while_one_of_its_batches_awaits_nothing():
    instance = SimInstance(slots=2)
    model = SimModel([instance])
    running(model, instance)
    running(model, instance)
    awaited = queued(model)
    graph = WaitGraph()
    graph.add(BlockedBatch(instance, 1, is_blocking=False), awaited)

    assert not graph.is_deadlocked(awaited)


def test_instance_that_ends_holds_up_nobody():
    instance = SimInstance(slots=0)
    awaited = queued(SimModel([instance]))
    graph = WaitGraph()
    graph.add(BlockedBatch(instance, 1, is_blocking=False), awaited)

    assert not graph.is_deadlocked(awaited)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_batch_with_several_calls_moves_when_one_is_answered(is_blocking):
    caller, other = SimInstance(), SimInstance()
    model = SimModel([caller])
    running(model, caller)
    stuck = queued(model)
    runs = running(SimModel([other]), other)
    graph = WaitGraph()
    wait = BlockedBatch(caller, 1, is_blocking=is_blocking)
    graph.add(wait, stuck)
    assert graph.is_deadlocked(stuck)

    graph.add(wait, runs)

    assert not graph.is_deadlocked(stuck)
    assert repr(graph) == "<WaitGraph 2 calls wait>"


@pytest.mark.parametrize("is_blocking", [True, False])
def test_graph_forgets_what_is_not_waited_for(is_blocking):
    graph, made = WaitGraph(), inference()
    wait = BlockedBatch(SimInstance(), 1, is_blocking=is_blocking)
    assert graph.discard(wait, made) == []
    graph.add(wait, made)

    assert graph.discard(wait, made) == []
    assert len(graph) == 0


def test_graph_tells_what_a_batch_still_awaits():
    graph, instance = WaitGraph(), SimInstance()
    first, second, other = inference(), inference(), inference()
    wait = BlockedBatch(instance, 1, is_blocking=False)
    for made in (first, second):
        graph.add(wait, made)
    graph.add(BlockedBatch(instance, 2, is_blocking=False), other)

    assert graph.discard(wait, first) == [second]
    assert graph.discard(wait, second) == []
    assert len(graph) == 1


def test_graph_tells_what_coroutines_await_whose_thread_goes_on():
    graph, instance = WaitGraph(), SimInstance(slots=3)
    first, second, blocking = inference(), inference(), inference()
    for number, made in enumerate((first, second), 1):
        graph.add(BlockedBatch(instance, number, is_blocking=False), made)
    wait = BlockedBatch(instance, 0, is_blocking=True)
    graph.add(wait, blocking)

    assert graph.discard(wait, blocking) == [first, second]
