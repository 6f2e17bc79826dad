# SPDX-License-Identifier: Apache-2.0
"""Prepares a worker process, forked or spawned, and runs its model."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytriton.python_backend.output import end_output, label_output
from pytriton.python_backend.worker import Worker
from pytriton.request_ids import add_to_log_records
from pytriton.transport.zygote import set_process_title

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

_IGNORED = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def run_worker(
    channel_descriptor: int, fork_descriptor: int, title: str, environment: Mapping[str, str]
) -> None:
    """Make this process a worker, and run its model until the server ends it."""
    for descriptor in (channel_descriptor, fork_descriptor):
        os.set_inheritable(descriptor, False)
    _die_with_parent()
    _ignore_signals()
    os.environ.update(environment)
    np.random.seed()  # noqa: NPY002  the state that models share, equal in all forks otherwise
    set_process_title(title)
    # As in Triton. With our arguments, models that parse them, like `unittest.main`, would exit.
    sys.argv = [""]
    label_output()
    add_to_log_records()
    worker = Worker(socket.socket(fileno=channel_descriptor), socket.socket(fileno=fork_descriptor))
    worker.run()
    end_output()


def _ignore_signals() -> None:
    """Ignore signals that reach a whole terminal or container: the server decides when to end.

    Processes that the model forks, for example those of a pool, are ended by these signals as
    usual. That includes a signal that arrives before they have restored the default.
    """
    # An empty handler, not SIG_IGN, because programs that the model starts would inherit SIG_IGN.
    for number in _IGNORED:
        signal.signal(number, _do_nothing)
    block = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, _IGNORED)
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _IGNORED)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=_restore_signals)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Ignore a signal."""


def _restore_signals() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even during a model's long call."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call of prctl
        os._exit(1)


def remove_first_path() -> None:
    """Remove the first entry of `sys.path`, which is only there to find this package.

    For models the package is at the end of the path, and the working directory is not in it.
    """
    holder = Path(__file__).resolve().parents[2]
    if sys.path[0] in ("", str(Path.cwd()), str(holder)):
        del sys.path[0]
