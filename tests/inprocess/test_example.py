# SPDX-License-Identifier: Apache-2.0
"""The example of a program with the engine inside."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.examples.readme_commands import commands

REPOSITORY = pathlib.Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "backends" / "in_process"

pytestmark = pytest.mark.e2e


def test_program_prints_what_its_page_says():
    (program,) = commands(EXAMPLE / "README.md")
    done = subprocess.run(
        program.arguments, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr, done.stdout) == (0, "", program.promised)
