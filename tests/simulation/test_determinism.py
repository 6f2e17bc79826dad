# SPDX-License-Identifier: Apache-2.0
"""The same seed gives the same run: in another process, on another machine, in another Python.

`traces.json` has the hashes of some runs. A change of the project, of the clients or of the
simulation may change them: `python -m tests.simulation.test_determinism` writes them again.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from tests.simulation.scenario import PROFILES, Run, make_scenario

_RECORDED = pathlib.Path(__file__).with_name("traces.json")
_SEED = 3


def _trace(profile: str) -> str:
    return Run(make_scenario(_SEED, profile)).run().trace


def _traces_elsewhere(profiles: tuple[str, ...], hash_seed: str) -> list[str]:
    """The hashes of runs in a new process, whose sets and dictionaries hash otherwise."""
    code = (
        "from tests.simulation.test_determinism import _trace\n"
        f"for profile in {profiles!r}: print(_trace(profile))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.split()


def test_seed_gives_same_run_in_processes_that_hash_otherwise():
    profiles = ("mixed", "management")
    first = _traces_elsewhere(profiles, "1")
    second = _traces_elsewhere(profiles, "2")

    assert first == second


def test_seed_gives_same_run_twice_in_a_process():
    first = _trace("streams")
    second = _trace("streams")

    assert first == second


def test_seeds_give_recorded_runs_on_every_machine_and_python():
    recorded = json.loads(_RECORDED.read_text())
    now = {profile: _trace(profile) for profile in PROFILES}

    assert now == recorded, (
        "runs are not as they were recorded. If the project, the clients or the simulation were "
        "changed, write them again with python -m tests.simulation.test_determinism; if not, "
        "something depends on the machine or on the version of Python"
    )


if __name__ == "__main__":
    hashes = {profile: _trace(profile) for profile in PROFILES}
    _RECORDED.write_text(json.dumps(hashes, indent=2) + "\n")
