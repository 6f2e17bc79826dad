# SPDX-License-Identifier: Apache-2.0
"""Has the replies read that event loops await, which cannot wait in a mailbox themselves.

The model's thread reads for the instance's own loop, as it waits for batches nearly all the time.
Where it is busy for long, and for loops that the model runs itself, a helper thread reads.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from pytriton.python_backend.mailbox import PATIENCE_S, Waiter

if TYPE_CHECKING:
    from pytriton.python_backend.mailbox import Mailbox


class LoopReader(Waiter):
    """The calls that event loops of this process await, and the helper thread."""

    __slots__ = ("_helped", "_helper", "_is_wanted", "_is_watching", "_mailbox", "_trusting",
                 "own_thread")  # fmt: skip

    def __init__(self, mailbox: Mailbox) -> None:
        self.own_thread = 0  # of the instance's own loop
        self._mailbox = mailbox
        self._trusting: set[Waiter] = set()  # that the model's thread will read
        self._helped: set[Waiter] = set()
        self._is_watching = False
        self._is_wanted = threading.Event()
        self._helper: threading.Thread | None = None

    def expect(self, call: Waiter) -> None:
        """The running event loop awaits something; the call is told, and forgotten then."""
        if threading.get_ident() != self.own_thread:
            self._helped.add(call)
            self._help()
            return
        self._trusting.add(call)
        if not self._is_watching:
            self._is_watching = True
            loop = asyncio.get_running_loop()
            loop.call_later(PATIENCE_S, self._watch, loop, self._mailbox.count)

    def forget(self, call: Waiter) -> None:
        """A call needs nobody to read for it any more."""
        self._trusting.discard(call)
        self._helped.discard(call)

    def has_news(self) -> bool:
        """Whether the helper may stop."""
        return not self._helped

    def __repr__(self) -> str:
        return f"<LoopReader trusting={len(self._trusting)} helped={len(self._helped)}>"

    def _watch(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Give calls to the helper if the model's thread did not read for a while."""
        mailbox = self._mailbox
        is_quiet = mailbox.is_unattended and mailbox.count == count
        if self._trusting and is_quiet:
            self._helped |= self._trusting
            self._trusting = set()
            self._help()
        self._is_watching = bool(self._trusting)
        if self._is_watching:
            loop.call_later(PATIENCE_S, self._watch, loop, mailbox.count)

    def _help(self) -> None:
        self._is_wanted.set()
        if self._helper is None:
            self._helper = threading.Thread(target=self._run, name="pytriton-reader", daemon=True)
            self._helper.start()

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                self._mailbox.wait(self)
            except EOFError:
                for call in [*self._helped, *self._trusting]:
                    call.tell()
                return
