# SPDX-License-Identifier: Apache-2.0
"""The order that follows from the steps of ensembles, for some graphs and for random ones."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from pytriton.serving.repository.model_set import (
    bottom_up,
    dependents,
    run_in_order,
    superfluous,
    waits,
)

STEPS = {"e": ["a", "b"], "n": ["e", "c"], "other": ["b"]}
NAMES = "abcdefgh"
graphs = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)
)
some_names = st.sets(st.sampled_from(NAMES))


def test_dependents_are_found_through_nested_ensembles():
    assert dependents(["a"], STEPS) == {"e", "n"}
    assert dependents(["b"], STEPS) == {"e", "n", "other"}
    assert dependents(["c", "x"], STEPS) == {"n"}
    assert dependents(["n"], STEPS) == set()


def test_ensemble_waits_only_for_steps_that_are_loaded_with_it():
    assert waits(["n", "e", "a", "z"], STEPS) == {"n": ["e"], "e": ["a"], "a": [], "z": []}


def test_members_of_a_cycle_do_not_wait_for_each_other():
    steps = {"x": ["y", "a"], "y": ["x"], "self": ["self"], "on": ["x"]}

    assert waits([*steps, "a"], steps) == {
        "x": ["a"],
        "y": [],
        "self": [],
        "on": ["x"],
        "a": [],
    }


def test_superfluous_are_steps_that_nobody_else_needs():
    assert superfluous("n", STEPS, kept=()) == {"e", "a", "c"}
    assert superfluous("n", STEPS, kept={"e"}) == {"c"}
    assert superfluous("e", STEPS, kept={"a"}) == set()
    assert superfluous("a", STEPS, kept=()) == set()


@given(graphs, some_names)
def test_order_never_deadlocks_and_puts_steps_first(steps, names):
    order = waits(names, steps)
    ended: list[str] = []

    async def work(name: str) -> None:
        assert all(step in ended for step in order[name])
        await asyncio.sleep(0)
        ended.append(name)

    outcomes = asyncio.run(run_in_order(order, work))

    assert outcomes == dict.fromkeys(names)
    assert sorted(ended) == sorted(names)
    ordered = bottom_up(names, steps)
    assert sorted(ordered) == sorted(names)
    assert all(ordered.index(step) < ordered.index(name) for name in names for step in order[name])


@given(graphs, some_names, st.sampled_from(NAMES))
def test_unloading_superfluous_steps_breaks_no_other_ensemble(steps, kept, name):
    gone = superfluous(name, steps, kept)

    assert not gone & kept
    for ensemble, models in steps.items():
        if ensemble not in gone | {name}:
            assert not gone & set(models)


def test_work_that_fails_does_not_keep_others_from_running():
    async def work(name: str) -> None:
        if name == "a":
            raise ValueError(name)

    outcomes = asyncio.run(run_in_order({"e": ["a"], "a": [], "b": []}, work))

    assert isinstance(outcomes.pop("a"), ValueError)
    assert outcomes == {"e": None, "b": None}
