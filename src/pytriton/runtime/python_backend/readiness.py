# SPDX-License-Identifier: Apache-2.0
"""Calls a model's `is_ready` on a thread of its own, also while `execute` runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytriton.runtime.python_backend.failure_text import RuleError
from pytriton.runtime.python_backend.mailbox import Inbox, Waiter
from pytriton.runtime.transport.frames import CheckReady, ReadyReport

if TYPE_CHECKING:
    from pytriton.runtime.python_backend.connection import Connection
    from pytriton.runtime.python_backend.coroutines import CoroutineThread
    from pytriton.runtime.transport.channel import Received


class ReadyCheck:
    """Answers checks one at a time; checks that arrive during a call get its result."""

    def __init__(
        self,
        is_ready: Callable[[], Any],
        connection: Connection,
        coroutines: CoroutineThread,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._is_ready = is_ready
        self._connection = connection
        self._coroutines = coroutines
        self._on_error = on_error
        self._inbox = Inbox(is_low_priority=True)

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="pytriton-ready", daemon=True).start()

    def on_check(self, received: Received) -> Waiter:
        """Queue a check."""
        return self._inbox.put(received)

    def _run(self) -> None:
        mailbox, checks = self._connection.mailbox, self._inbox.messages
        while True:
            try:
                mailbox.wait(self._inbox)
            except EOFError:
                return
            is_ready = self._call_is_ready()
            while checks:
                check = checks.popleft().frame
                assert isinstance(check, CheckReady)
                self._connection.outbox.post(ReadyReport(check.call, is_ready))

    def _call_is_ready(self) -> bool:
        try:
            answer = self._is_ready()
            if asyncio.iscoroutine(answer):
                answer = self._coroutines.run(answer)
        except BaseException as error:  # noqa: BLE001  a model that raises anything is not ready
            if not self._coroutines.is_stopped:  # else the end of the model has cancelled it
                self._on_error(error)
            return False
        if not isinstance(answer, bool):
            self._on_error(RuleError(f"is_ready() must return a boolean value, got {answer!r}"))
            return False
        return answer
