# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition with a deadline, and files that processes are still writing.

No other place of these tests lets time pass.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Callable

# Generous: a machine that is busy with other things must not make a test fail.
DEADLINE_S = 180.0
# For tests that wait in vain: as long as what does come at once may take on such a machine.
AT_ONCE_S = 3.0
_POLL_S = 0.005
_never = threading.Event()


def eventually(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> bool:
    """Whether the condition comes true before the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        _never.wait(_POLL_S)
    return True


def is_waiting(thread: threading.Thread) -> bool:
    """Whether a thread is in a wait for a condition, an event, a semaphore or a queue."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def whole_lines(path: pathlib.Path) -> list[str]:
    """The lines of a file without the last one, if a process has written only a part of it."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def remove_folder(folder: pathlib.Path) -> None:
    """Delete a folder in which processes that are just ending may still write."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    assert eventually(is_gone), f"something still writes to {folder}"
