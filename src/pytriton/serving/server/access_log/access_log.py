# SPDX-License-Identifier: Apache-2.0
"""Collects the requests that have ended, and writes their lines in a thread.

The event loop only appends to a list. What it has gathered for some milliseconds is formatted and
written together, so that a slow disk delays no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING

from pytriton.serving.server.access_log.destination import Destination
from pytriton.serving.server.access_log.lines import AccessEntry, json_line, plain_line
from pytriton.serving.server.options.server_options import JSON

if TYPE_CHECKING:
    from pytriton.serving.server.access_log.lines import Format
    from pytriton.serving.server.options.server_options import AccessLogOptions

logger = logging.getLogger(__name__)

_GATHERING_S = 0.05
# Entries that wait because the disk is slow; those beyond are lost and counted.
_MAX_WAITING = 100_000
_END_S = 2.0  # for the last lines to be written


class AccessLog:
    """The access log of one process.

    Args:
        options: Its settings.
        loop: The event loop that adds entries.
        destination: Where lines go, if not where the settings say.
    """

    def __init__(
        self,
        options: AccessLogOptions,
        loop: asyncio.AbstractEventLoop,
        destination: Destination | None = None,
    ) -> None:
        self._loop = loop
        self._format: Format = json_line if options.format == JSON else plain_line
        self._path = options.file or "-"
        self._destination = destination or Destination(self._path)
        self._gathered: list[AccessEntry] = []
        self._is_due = False
        self._waiting_count = 0
        self._lost_count = 0
        self._is_reported = False
        self._queue: queue.SimpleQueue[list[AccessEntry] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # until there is something to write

    def add(self, entry: AccessEntry) -> None:
        """Add a request that has ended."""
        self._gathered.append(entry)
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(_GATHERING_S, self._pass_on)

    def close(self) -> None:
        """Write what was added; nothing may be added any more."""
        self._pass_on()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(_END_S)

    def _pass_on(self) -> None:
        self._is_due = False
        entries, self._gathered = self._gathered, []
        if not entries:
            return
        if self._waiting_count >= _MAX_WAITING:
            self._lost_count += len(entries)
            return
        self._waiting_count += len(entries)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="pytriton-access-log", daemon=True
            )
            self._thread.start()
        self._queue.put(entries)

    # In the thread

    def _run(self) -> None:
        while (entries := self._queue.get()) is not None:
            self._write(entries)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_written, len(entries))
        self._destination.close()

    def _on_written(self, count: int) -> None:
        self._waiting_count -= count

    def _write(self, entries: list[AccessEntry]) -> None:
        try:
            lines = [f"{self._format(entry)}\n".encode() for entry in entries]
            self._destination.write(lines)
        except Exception as error:
            self._lost_count += len(entries)
            if not self._is_reported:
                self._is_reported = True
                is_expected = isinstance(error, OSError)
                logger.warning(
                    "the access log cannot be written to '%s': %s; its lines are lost until it "
                    "can be written again",
                    self._path,
                    error,
                    exc_info=None if is_expected else error,
                )
            return
        if self._lost_count:
            logger.warning("%d lines of the access log were lost", self._lost_count)
            self._lost_count, self._is_reported = 0, False
