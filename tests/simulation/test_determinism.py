# SPDX-License-Identifier: Apache-2.0
"""The same seed gives the same run: in another process, on another machine, in another Python.

`traces.json` has the hashes of some runs. A change of the project, of the clients or of the
simulation may change them: `python -m tests.simulation.test_determinism` writes them again.
"""

from __future__ import annotations

import json
import pathlib

from tests.simulation.campaign import Job, run_job
from tests.simulation.elsewhere import Elsewhere
from tests.simulation.scenario import PROFILES

_RECORDED = pathlib.Path(__file__).with_name("traces.json")
_SEED = 3


def _trace(process: Elsewhere, profile: str) -> str:
    return process.call(run_job, Job(profile, _SEED)).trace


def test_seed_gives_same_run_in_processes_that_hash_otherwise():
    traces = []
    for hash_seed in ("1", "2"):
        with Elsewhere(PYTHONHASHSEED=hash_seed) as process:
            traces.append([_trace(process, profile) for profile in ("mixed", "management")])

    assert traces[0] == traces[1]


def test_seed_gives_same_run_twice_in_a_process(elsewhere: Elsewhere):
    first = _trace(elsewhere, "streams")
    second = _trace(elsewhere, "streams")

    assert first == second


def test_seeds_give_recorded_runs_on_every_machine_and_python(elsewhere: Elsewhere):
    recorded = json.loads(_RECORDED.read_text())
    now = {profile: _trace(elsewhere, profile) for profile in PROFILES}

    assert now == recorded, (
        "runs are not as they were recorded. If the project, the clients or the simulation were "
        "changed, write them again with python -m tests.simulation.test_determinism; if not, "
        "something depends on the machine or on the version of Python"
    )


if __name__ == "__main__":
    with Elsewhere() as process:
        hashes = {profile: _trace(process, profile) for profile in PROFILES}
    _RECORDED.write_text(json.dumps(hashes, indent=2) + "\n")
