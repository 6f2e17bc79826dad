# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C during a run: the first one asks for what there is, the second one ends it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Whether somebody wants the run to end."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_second = False
        self.is_deaf = False  # while something is put right that must not be left undone

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Note the first interrupt; raise KeyboardInterrupt at the second."""
        if self.is_wanted and self.is_deaf:
            return
        if self.is_wanted:
            self.is_second = True
            raise KeyboardInterrupt
        self.is_wanted = True

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Take interrupts here, as long as this lasts."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can
            return
        before = {
            number: signal.signal(number, self.on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)
