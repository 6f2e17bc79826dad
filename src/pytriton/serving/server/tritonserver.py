# SPDX-License-Identifier: Apache-2.0
"""The `tritonserver` command: serves the models of repositories until a signal ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule, no_garbage_search
from pytriton.base.openblas import load_without_threads

if TYPE_CHECKING:
    from typing import NoReturn

    from pytriton.serving.server import serving, worker_zygote
    from pytriton.serving.server.command import run
    from pytriton.serving.server.process import event_loop
else:  # workers are forked without the server's modules
    worker_zygote = LazyModule("pytriton.serving.server.worker_zygote")
    serving = LazyModule("pytriton.serving.server.serving")
    run = LazyModule("pytriton.serving.server.command.run")
    event_loop = LazyModule("pytriton.serving.server.process.event_loop")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of this process; returns its exit code."""
    load_without_threads()
    with no_garbage_search():
        workers = worker_zygote.fork_worker_zygote()
        run_command, prepare = run.run_command, partial(serving.prepare, workers=workers)
    return run_command(sys.argv[1:] if arguments is None else arguments, prepare)


def command() -> NoReturn:
    """Run the command of this process, and end the process."""
    code = main()  # first: the workers' zygote is forked without the modules of the event loop
    event_loop.end_process(code)


if __name__ == "__main__":
    command()
