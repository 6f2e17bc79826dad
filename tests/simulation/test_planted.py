# SPDX-License-Identifier: Apache-2.0
"""Bugs that are planted into the project are found by ordinary scenarios, where they once were.

After a change of the scenarios or of the project, `python -m tests.simulation.planted --write`
looks for all of them anew.
"""

from __future__ import annotations

import pytest

from tests.simulation.campaign import Job, run_job
from tests.simulation.elsewhere import Elsewhere
from tests.simulation.planted import BUGS, read_record

JOBS = {
    name: Job(BUGS[name].profile, seed) for name, seed in read_record().items() if seed is not None
}


@pytest.mark.parametrize("name", JOBS)
def test_planted_bug_is_found(name):
    with BUGS[name].planted() as process:
        findings = process.call(run_job, JOBS[name]).findings

    assert findings, BUGS[name].sentence


@pytest.mark.parametrize(
    "job", dict.fromkeys(JOBS.values()), ids=lambda job: f"{job.profile}-{job.seed}"
)
def test_scenario_without_bug_finds_nothing(job, elsewhere: Elsewhere):
    assert elsewhere.call(run_job, job).findings == []
