# SPDX-License-Identifier: Apache-2.0
"""The process that forks front ends, whose modules it has imported.

The server forks it before it starts threads and its event loop, which takes some milliseconds and
shares the memory of all modules. If it is killed, the server starts another one, as a program.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import signal
import socket
import traceback
from typing import TYPE_CHECKING

from pytriton.runtime.executor.python_process import StartedZygote, fork_zygote, start_zygote
from pytriton.runtime.transport.zygote import ForkServer, ZygoteLink, set_process_title
from pytriton.serving.server.frontend.process import run_front_end

if TYPE_CHECKING:
    from typing import NoReturn


def fork_front_end_zygote() -> StartedZygote:
    """Fork a zygote off this process, which must not have threads or a running event loop yet."""
    return fork_zygote(_run)


# Starts a zygote as a program.
spawn_zygote = functools.partial(start_zygote, "pytriton.serving.server.frontend.zygote")


def _run(control: socket.socket) -> NoReturn:
    """Serve fork requests, or a front end in a forked process; never returns."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        # Existing objects are never garbage, and a collector that visits them would copy their
        # pages in every fork.
        gc.collect()
        gc.freeze()
        set_process_title("pytriton zygote of front ends")
        fork = ForkServer(ZygoteLink(control)).serve()
        if fork is not None:
            set_process_title(fork.title)
            run_front_end(fork.channel_descriptor, fork.fork_descriptor)
        code = 0
    except BaseException:  # noqa: BLE001  nothing above this frame belongs to this process
        traceback.print_exc()
    finally:
        os._exit(code)


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.serving.server.frontend.zygote")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.control_fd, False)
    _run(socket.socket(fileno=options.control_fd))


if __name__ == "__main__":
    main()
