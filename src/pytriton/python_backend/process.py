# SPDX-License-Identifier: Apache-2.0
"""What a worker process does to itself before it runs a model, whoever started it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import io
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytriton.python_backend.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

_IGNORED = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def run_worker(
    channel_descriptor: int, fork_descriptor: int, title: str, environment: Mapping[str, str]
) -> None:
    """Turn this process into a worker, and run its model until the server ends it."""
    for descriptor in (channel_descriptor, fork_descriptor):
        os.set_inheritable(descriptor, False)
    _die_with_parent()
    _ignore_signals()
    os.environ.update(environment)
    np.random.seed()  # noqa: NPY002  the state that models share, equal in all forks otherwise
    _set_title(title)
    # As in Triton. Ours would make a model exit that parses its arguments, as `unittest.main` does.
    sys.argv = [""]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    worker = Worker(socket.socket(fileno=channel_descriptor), socket.socket(fileno=fork_descriptor))
    worker.run()


def _ignore_signals() -> None:
    """Leave it to the server when to end: these signals reach a whole terminal or container.

    Processes that the model forks, a pool's for example, end by signals as anywhere else, also by
    one that comes before they could say so.
    """
    # A handler that does nothing, not SIG_IGN, which programs that the model starts would inherit.
    for number in _IGNORED:
        signal.signal(number, _do_nothing)
    block = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, _IGNORED)
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _IGNORED)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=_take_signals)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Take a signal."""


def _take_signals() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)


def _die_with_parent() -> None:
    """Be killed when the parent goes, even in the middle of a model's longest call."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it went before we said so
        os._exit(1)


def _set_title(title: str) -> None:
    try:
        setproctitle = importlib.import_module("setproctitle")
    except ImportError:
        return
    setproctitle.setproctitle(title)


def forget_first_path() -> None:
    """Take out of `sys.path` what stands there only to find this package, before all else.

    Models find it at the end of the path, and do not import from the working directory.
    """
    holder = Path(__file__).resolve().parents[2]
    if sys.path[0] in ("", str(Path.cwd()), str(holder)):
        del sys.path[0]
