# SPDX-License-Identifier: Apache-2.0
"""Many runs of our command, each in a process that is forked from one that has imported everything.

To import it takes most of a second, and there are more than a hundred commands. This module is
also the program of the process that forks: a line of JSON in, the exit code out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Run = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]


@contextlib.contextmanager
def forked_commands(folder: str) -> Iterator[Run]:
    """Yields a function that runs the command with these arguments and this environment."""
    lock = threading.Lock()

    def run(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
        with tempfile.NamedTemporaryFile() as output, lock:
            request = [list(arguments), dict(environment), output.name]
            process.stdin.write(f"{json.dumps(request)}\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            return code, Path(output.name).read_text(errors="replace")

    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path])),
        },
        cwd=folder,
    ) as process:
        try:
            yield run
        finally:
            process.stdin.close()


def _fork(arguments: list[str], environment: dict[str, str], output: str) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        file = os.open(output, os.O_WRONLY | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        os.environ.update(environment)
        sys.argv[1:] = arguments
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    from pytriton.serving.server import serving  # noqa: F401  the command imports it when it runs
    from pytriton.serving.server.tritonserver import main

    for line in sys.stdin:
        sys.stdout.write(f"{_fork(*json.loads(line))}\n")
        sys.stdout.flush()
