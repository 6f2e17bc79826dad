# SPDX-License-Identifier: Apache-2.0
"""Senders of responses, and credit that comes at the moment in which they begin to wait."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.backend.windows import QueuedResponse, SenderTurn
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.payload import Received


class Waiting:
    """A sender without credit, of a batch with one request, whose credit comes too early."""

    def __init__(self, turn: SenderTurn) -> None:
        mailbox = SimpleNamespace(is_over=False, read_available=lambda: None)
        reader = SimpleNamespace(mailbox=mailbox, add=lambda _: None, remove=lambda _: None)
        outbox = SimpleNamespace(flush=lambda: None)
        batches = OpenBatches(outbox, reader, [], is_decoupled=True, is_batching=True)
        self.batch = batches.begin(Received(Execute(7, [1], []), bytearray(), 0, {}))
        self.window = self.batch._window(0)
        for _ in range(RESPONSE_WINDOW):
            self.window.spend(1)
        self.turn = turn
        self.sent: list[str] = []

    def choose(self, *_, is_end: bool) -> SenderTurn:
        """What a sender is told; the client's credit is there before others see that it waits."""
        if not self.window.is_open:
            return self.turn
        return SenderTurn.SEND

    def send(self) -> bool:
        entry = QueuedResponse(lambda: self.sent.append("queued"), None, 1, is_final=True)
        return self.batch._hold(0, self.window, lambda: entry)


@pytest.mark.parametrize("turn", [SenderTurn.SLEEP, SenderTurn.QUEUE])
def test_credit_that_comes_as_a_sender_begins_to_wait_is_noticed(monkeypatch, turn):
    waiting = Waiting(turn)
    batches = waiting.batch.batches
    name = "add_sleeper" if turn is SenderTurn.SLEEP else "add"
    begin = getattr(batches, name)

    def begin_too_late(*arguments):
        waiting.batch.credit(0, 1).on_delivered()  # nobody seems to wait
        return begin(*arguments)

    monkeypatch.setattr(batches, name, begin_too_late)
    monkeypatch.setattr(
        type(waiting.batch), "_turn", lambda _, *args, **kwargs: waiting.choose(*args, **kwargs)
    )
    held: list[bool] = []
    sender = threading.Thread(target=lambda: held.append(waiting.send()), daemon=True)
    sender.start()
    sender.join(10.0)

    assert held == [turn is SenderTurn.QUEUE]
    assert waiting.sent == (["queued"] if turn is SenderTurn.QUEUE else [])
