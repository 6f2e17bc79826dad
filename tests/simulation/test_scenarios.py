# SPDX-License-Identifier: Apache-2.0
"""Some seeds of every profile have no findings; `scripts/simulate` runs many more."""

from __future__ import annotations

import re

import pytest

from tests.simulation.__main__ import main
from tests.simulation.campaign import LONG, Job, run_jobs
from tests.simulation.scenario import PROFILES, Run, make_scenario
from tests.simulation.story import tell


@pytest.mark.parametrize("seed", range(100, 102))
@pytest.mark.parametrize("profile", PROFILES)
def test_seed_has_no_findings(profile: str, seed: int):
    result = Run(make_scenario(seed, profile)).run()

    assert not result.findings, tell(result)


def test_hour_of_quiet_clients_has_no_findings():
    result = Run(make_scenario(111, "quiet", length=LONG["quiet"])).run()

    assert not result.findings, tell(result)
    assert result.virtual_s > 1800


def test_command_prints_the_hash_of_a_seed_and_sums_up(capsys):
    status = main(["--profile", "sequences", "--seed", "1", "--count", "1", "--trace"])
    lines = capsys.readouterr().out.splitlines()

    assert status == 0
    assert re.fullmatch(r"sequences 1 [0-9a-f]{64}", lines[0])
    assert re.match(r"1 runs, \d+ calls, .* 0 with findings", lines[-1])


def test_runs_in_several_processes_are_as_in_one():
    jobs = [Job("sequences", seed) for seed in (1, 5)]
    alone = [each.trace for each in run_jobs(jobs, 1)]
    together = [each.trace for each in run_jobs(jobs, 2)]

    assert alone == together
