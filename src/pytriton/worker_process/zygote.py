# SPDX-License-Identifier: Apache-2.0
"""Forks workers, whose modules it has imported; see `pytriton.transport.zygote`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import signal
import socket

# Imported for the forked processes.
import triton_python_backend_utils  # noqa: F401

from pytriton.transport.zygote import Zygote
from pytriton.transport.zygote_messages import ZygoteLink
from pytriton.worker_process.process import remove_first_path, run_worker


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.worker_process.zygote")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE")
    options = parser.parse_args(arguments)
    remove_first_path()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(options.control_fd, False)
    for name in options.preload:
        with contextlib.suppress(Exception):  # the worker imports it again, and reports the error
            importlib.import_module(name)
    # Existing objects are never garbage, and a collector that visits them would copy their pages
    # in every fork.
    gc.collect()
    gc.freeze()
    fork = Zygote(ZygoteLink(socket.socket(fileno=options.control_fd))).serve()
    if fork is not None:
        run_worker(*fork)


if __name__ == "__main__":
    main()
