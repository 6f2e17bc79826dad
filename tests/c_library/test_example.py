# SPDX-License-Identifier: Apache-2.0
"""The example in C as a user runs it: each command of its README, in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.c_library.building import TIMEOUT_S, missing
from tests.examples.readme_commands import commands

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "examples" / "backends" / "c_in_process" / "README.md"

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_commands_of_the_readme_do_what_it_says(tmp_path):
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    for command in commands(README):
        text = command.text.replace("/tmp/pytriton-c", str(tmp_path))
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=REPOSITORY,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == (command.promised or "")
