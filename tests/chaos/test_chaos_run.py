# SPDX-License-Identifier: Apache-2.0
"""A small run of the harness as a command: faults hit, every call is in the account."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]


def run_chaos(*arguments):
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--clients", "8", *arguments]
    environment = {name: os.environ[name] for name in os.environ if "FRONTEND" not in name}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def account(text):
    """The sums of the account, by column."""
    lines = text.splitlines()
    (head,) = [line for line in lines if line.startswith("  calls ")]
    (sums,) = [line for line in lines if line.startswith("  all ")]
    titles = [each.strip() for each in head.split("  ") if each.strip()][1:]
    return dict(zip(titles, map(int, sums.split()[1:]), strict=True))


@pytest.mark.parametrize(
    "server, front_ends, fault",
    [("repository", 0, "kill worker"), ("bound", 2, "kill front end")],
)
def test_calls_of_a_small_run_are_all_accounted_for(server, front_ends, fault):
    done = run_chaos(
        *("--server", server, "--front-ends", str(front_ends)),
        *("--faults", fault, "--minutes", "0.08"),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"x {fault}" in done.stdout
    assert "no findings" in done.stdout
    sums = account(done.stdout)
    sent = sums.pop("sent")
    assert sent > 0
    assert sum(sums.values()) == sent
    assert (sums["wrong"], sums["lost"], sums["double"]) == (0, 0, 0)
