# SPDX-License-Identifier: Apache-2.0
"""Arranges that replies for event loops are read: a loop cannot block in `Mailbox.wait` itself.

The model's thread reads for the loop of the instance, because it waits for batches nearly all the
time. If that thread is busy for long, and for other loops that the model runs, a helper thread
reads.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from pytriton.runtime.python_backend.mailbox import BUSY_TIMEOUT_S, Waiter

if TYPE_CHECKING:
    from pytriton.runtime.python_backend.mailbox import Mailbox


class LoopReader(Waiter):
    """The calls that event loops of this process wait for, and the helper thread."""

    __slots__ = (
        "_helper",
        "_helper_calls",
        "_helper_wakeup",
        "_is_checking",
        "_mailbox",
        "_main_calls",
        "own_thread",
    )  # fmt: skip

    def __init__(self, mailbox: Mailbox) -> None:
        self.own_thread = 0  # the thread of the instance's loop
        self._mailbox = mailbox
        self._main_calls: set[Waiter] = set()  # the model's thread reads their replies
        self._helper_calls: set[Waiter] = set()  # the helper thread reads their replies
        self._is_checking = False
        self._helper_wakeup = threading.Event()
        self._helper: threading.Thread | None = None

    def add(self, call: Waiter) -> None:
        """Read replies for a call that the running event loop waits for, until `remove`."""
        if threading.get_ident() != self.own_thread:
            self._helper_calls.add(call)
            self._wake_helper()
            return
        self._main_calls.add(call)
        if not self._is_checking:
            self._is_checking = True
            loop = asyncio.get_running_loop()
            loop.call_later(
                BUSY_TIMEOUT_S, self._check_main_thread, loop, self._mailbox.message_count
            )

    def remove(self, call: Waiter) -> None:
        """Stop to read replies for a call."""
        self._main_calls.discard(call)
        self._helper_calls.discard(call)

    def is_satisfied(self) -> bool:
        """Returns whether the helper may stop."""
        return not self._helper_calls

    def __repr__(self) -> str:
        return f"<LoopReader main={len(self._main_calls)} helper={len(self._helper_calls)}>"

    def _check_main_thread(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Pass calls to the helper if the model's thread has not read for a while."""
        mailbox = self._mailbox
        is_quiet = mailbox.has_no_reader and mailbox.message_count == count
        if self._main_calls and is_quiet:
            self._helper_calls |= self._main_calls
            self._main_calls = set()
            self._wake_helper()
        self._is_checking = bool(self._main_calls)
        if self._is_checking:
            loop.call_later(BUSY_TIMEOUT_S, self._check_main_thread, loop, mailbox.message_count)

    def _wake_helper(self) -> None:
        self._helper_wakeup.set()
        if self._helper is None:
            self._helper = threading.Thread(target=self._run, name="pytriton-reader", daemon=True)
            self._helper.start()

    def _run(self) -> None:
        while True:
            self._helper_wakeup.wait()
            self._helper_wakeup.clear()
            try:
                self._mailbox.wait(self)
            except EOFError:
                for call in [*self._helper_calls, *self._main_calls]:
                    call.on_delivered()
                return
