# SPDX-License-Identifier: Apache-2.0
"""More seeds of every profile, a long one of quiet clients, and the command that runs them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.simulation.campaign import LONG, Job, run_job, run_jobs
from tests.simulation.elsewhere import Elsewhere
from tests.simulation.scenario import PROFILES


@pytest.mark.parametrize("seed", range(100, 103))
@pytest.mark.parametrize("profile", PROFILES)
def test_seed_has_no_findings(profile: str, seed: int, elsewhere: Elsewhere):
    summary = elsewhere.call(run_job, Job(profile, seed))

    assert not summary.findings, summary.story


def test_hour_of_quiet_clients_has_no_findings(elsewhere: Elsewhere):
    summary = elsewhere.call(run_job, Job("quiet", 111, LONG["quiet"]))

    assert not summary.findings, summary.story
    assert summary.virtual_s > 1800


def test_command_prints_the_hash_of_a_seed_and_sums_up():
    command = [sys.executable, "-m", "tests.simulation", "--profile", "sequences"]
    done = subprocess.run(
        [*command, "--seed", "1", "--count", "1", "--trace"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()

    assert re.fullmatch(r"sequences 1 [0-9a-f]{64}", lines[0])
    assert re.match(r"1 runs, \d+ calls, .* 0 with findings", lines[-1])


def test_runs_in_several_processes_are_as_in_one(elsewhere: Elsewhere):
    jobs = [Job("sequences", seed) for seed in (1, 5)]
    alone = [elsewhere.call(run_job, job).trace for job in jobs]
    together = [each.trace for each in run_jobs(jobs, 2)]

    assert alone == together
