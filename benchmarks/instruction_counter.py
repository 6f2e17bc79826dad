# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the Python interpreter in a process and in those that it forks.

`processor_overhead` puts it before other modules of each process of a server. Nothing is counted
before the file `begin` is in the folder; once the file `end` is there, the counts by function are
written to a file with the number of the process. What code in C does is not seen.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
import threading
import time
from types import FrameType
from typing import Any

FOLDER = pathlib.Path(os.environ.get("PYTRITON_INSTRUCTION_COUNTS", ""))
_POLL_S = 0.02

counts: collections.Counter[Any] = collections.Counter()  # by code
_is_counting = False


def start() -> None:
    """Count in all threads that this process starts from now on, and in this one."""
    threading.settrace(_on_call)
    sys.settrace(_on_call)
    os.register_at_fork(after_in_child=_watch)
    _watch()


def _watch() -> None:
    counts.clear()
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    global _is_counting  # noqa: PLW0603  all threads read it
    sys.settrace(None)
    _wait_for("begin")
    _is_counting = True
    for frame in sys._current_frames().values():  # noqa: SLF001  of all threads
        each: FrameType | None = frame
        while each is not None:  # those that run all the time
            if each.f_trace is not None:
                _count(each)
            each = each.f_back
    _wait_for("end")
    _is_counting = False
    found = {f"{code.co_filename}:{code.co_qualname}": n for code, n in counts.copy().items()}
    part = FOLDER / f"{os.getpid()}.part"
    part.write_text(json.dumps(found))
    part.rename(FOLDER / f"{os.getpid()}.json")


def _wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(_POLL_S)


def _count(frame: FrameType) -> Any:
    frame.f_trace = _on_instruction
    frame.f_trace_lines = False
    frame.f_trace_opcodes = True
    return _on_instruction


def _on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
    if _is_counting:
        return _count(frame)
    frame.f_trace_lines = False
    return _on_instruction


def _on_instruction(frame: FrameType, event: str, _argument: Any) -> Any:
    if event == "opcode" and _is_counting:
        counts[frame.f_code] += 1
    return _on_instruction
