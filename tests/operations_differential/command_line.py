# SPDX-License-Identifier: Apache-2.0
"""Commands that end by themselves: their exit code and what they say last."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from tests.e2e.waiting import DEADLINE_S
from tests.operations_differential.server import Observation, Server

# A usage is long and ours is written otherwise; log lines and tables have cases of their own.
_LEFT_OUT = re.compile(
    r"^(?:Error: Failed to initialize NVML|\s|Usage:|[\w/ ]+:$|<prefix> |\+-|\||$"
    r"|'tritonserver --help' lists)"
)
_PROGRAM = re.compile(r"^\S*tritonserver: ")


def ended(
    server: Server, *options: str, environment: Mapping[str, str] | None = None
) -> Observation:
    """The exit code of a command with these options, and what it says outside of log and usage."""
    code, lines = written(server, *options, environment=environment)
    says = [_PROGRAM.sub("tritonserver: ", line) for line in lines if not _LEFT_OUT.match(line)]
    return {"exit code": code, "says": says}


def written(
    server: Server, *options: str, environment: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """The exit code of a command and all lines that it writes."""
    arguments = [server.filled(option) for option in options]
    if server.fork is not None:
        code, text = server.fork(arguments, environment or {})
        return code, server.normalised(text).splitlines()
    done = subprocess.run(
        [*server.command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=server.folder,
        env={**os.environ, **(environment or {})},
        timeout=DEADLINE_S,
        check=False,
    )
    text = server.normalised(done.stdout.decode(errors="replace"))
    return done.returncode, text.splitlines()
