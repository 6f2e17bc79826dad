# SPDX-License-Identifier: Apache-2.0
"""Starts the launcher process, and restarts it less often if it ends often."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from pytriton.base.errors import UnsupportedError
from pytriton.runtime.executor.python_process import start_zygote

if TYPE_CHECKING:
    from pytriton.runtime.executor.python_process import StartedZygote

_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 15.0
_CALM_S = 60.0  # a process that lived so long was all right


def require_ray() -> None:
    """Check that Ray is installed, without importing it.

    Raises:
        UnsupportedError: It is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise UnsupportedError(
            "Instances on a Ray cluster need the package ray, which is not installed: "
            "pip install 'pytriton[ray]'"
        )


def start_launcher() -> StartedZygote:
    """Start the launcher process; returns it with our end of its control socket."""
    return start_zygote("pytriton.runtime.cluster.launcher", takes_output=True)


class Backoff:
    """Decides how long to wait before the process is started again. The caller passes the time."""

    def __init__(self) -> None:
        self._started_s = 0.0
        self._ends_in_a_row = 0

    def on_start(self, now_s: float) -> None:
        """Note when the process was started."""
        self._started_s = now_s

    def on_end(self, now_s: float) -> float:
        """Returns the seconds to wait, after the process has ended."""
        if now_s - self._started_s >= _CALM_S:
            self._ends_in_a_row = 0
        delay_s: float = min(_FIRST_DELAY_S * 2**self._ends_in_a_row, _MAX_DELAY_S)
        self._ends_in_a_row = min(self._ends_in_a_row + 1, 16)
        return delay_s
