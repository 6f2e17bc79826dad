# SPDX-License-Identifier: Apache-2.0
"""Broken and hostile workers, by seed; `python -m tests.fuzz.workers` plays many more."""

from __future__ import annotations

import gc

import pytest

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.worker_play import play
from tests.fuzz.worker_story import Doing, Passing, Turns, make_story
from tests.fuzz.worker_world import KINDS
from tests.fuzz.workers import main, story_of

# Each has found something once.
FOUND = {
    9: "a descriptor was left of an update that came with too few of them",
    27: "a sentence of the log quoted all of a name",
    120: "of a worker that has ended, messages after a broken one were read",
}


@pytest.fixture(scope="module", autouse=True)
def _frozen_objects():
    """`play` collects garbage for each story, which leaves alone what other tests have left."""
    gc.freeze()


@pytest.mark.parametrize("kind", KINDS)
def test_good_worker_is_left_alone(kind):
    steps = [Doing("ask"), Turns(5), Doing("probe"), Passing(60.0), Doing("probe")]

    assert play([kind, *steps]).breaches == ()


@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_found_something_finds_nothing_now(seed):
    play(story_of(seed))


def test_worker_that_misbehaves_costs_its_instance_only():
    fuzz("workers", 150, make_story, play)


def test_command_plays_stories_and_prints_an_account(capsys):
    assert main(["--seed", "100", "--cases", "10"]) == 0

    assert capsys.readouterr().out.startswith("10 seeds, ")
