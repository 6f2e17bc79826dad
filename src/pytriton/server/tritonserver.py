# SPDX-License-Identifier: Apache-2.0
"""The `tritonserver` command: serves the models of repositories until a signal ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytriton.lazy_module import LazyModule, no_garbage_search
from pytriton.server.worker_zygote import fork_worker_zygote

if TYPE_CHECKING:
    from pytriton.server import serving
    from pytriton.server.command import run
else:  # workers are forked without the server's modules
    serving = LazyModule("pytriton.server.serving")
    run = LazyModule("pytriton.server.command.run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line without the program's name; by default that of this process.

    Returns:
        The exit code: 0 after an orderly shutdown, else 1.
    """
    workers = fork_worker_zygote()
    with no_garbage_search():
        run_command, prepare = run.run_command, partial(serving.prepare, workers=workers)
    return run_command(sys.argv[1:] if arguments is None else arguments, prepare)


if __name__ == "__main__":
    sys.exit(main())
