# SPDX-License-Identifier: Apache-2.0
"""Calls the application's functions, on a thread of their own for each server.

So a function may take its time, or ask the server something: the event loop goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)


class Delivery:
    """Calls functions one after the other, in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.add = self._calls.put
        self._thread = threading.Thread(target=self._run, name="pytriton-callbacks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is called by this object, and must not wait for it."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Make the calls that are due, then end the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                logger.exception("a response could not be delivered")
            del call  # it refers to tensors
