# SPDX-License-Identifier: Apache-2.0
"""Bugs that are planted into the project are found by ordinary scenarios, where they once were.

After a change of the scenarios or of the project, `python -m tests.simulation.planted --write`
looks for all of them anew.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS, NOT_FOUND, record
from tests.simulation.scenario import Run, make_scenario

RECORD = record()


def test_every_bug_was_found_or_is_known_to_be_missed():
    assert RECORD.keys() == BUGS.keys() - NOT_FOUND
    assert BUGS.keys() > NOT_FOUND


@pytest.mark.parametrize("name", RECORD)
def test_planted_bug_is_found(name):
    profile, seed = RECORD[name]["profile"], RECORD[name]["seed"]
    findings = Run(make_scenario(seed, profile)).run(BUGS[name].planted).findings

    assert findings, BUGS[name].sentence


@pytest.mark.parametrize(
    "profile, seed", sorted({(each["profile"], each["seed"]) for each in RECORD.values()})
)
def test_scenario_without_bug_finds_nothing(profile, seed):
    assert Run(make_scenario(seed, profile)).run().findings == []
