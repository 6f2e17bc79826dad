# SPDX-License-Identifier: Apache-2.0
"""A process's way to the server: what it calls there, and where the answers go.

A worker has one, over which it also gets its batches. A process that it forks makes one of its own,
with a socket that it sends to the server over the fork socket of its worker.
"""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING, Any

from pytriton.pb_utils.failures import TritonModelException
from pytriton.python_backend.loop_reader import LoopReader
from pytriton.python_backend.mailbox import Handler, Inbox, Mailbox, Waiter
from pytriton.transport.arena import Arena
from pytriton.transport.link import socket_pair
from pytriton.transport.memory_channel import MemoryChannel
from pytriton.transport.response_outbox import ResponseOutbox
from pytriton.transport.worker_frames import InferReply, ServiceCall, ServiceReply

if TYPE_CHECKING:
    from pytriton.transport.channel import Received


class Connection:
    """A channel with a mailbox, an outbox and the calls whose answers are awaited."""

    def __init__(self, sock: socket.socket) -> None:
        self.outbox = ResponseOutbox(MemoryChannel(sock, Arena()))
        self.handlers: dict[type, Handler] = {
            InferReply: self._on_reply,
            ServiceReply: self._on_reply,
        }
        self.mailbox = Mailbox(self.outbox, self.handlers)
        self.loop_reader = LoopReader(self.mailbox)
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}

    @classmethod
    def of_forked_process(cls, fork_socket: socket.socket) -> Connection:
        """A new connection, whose other end goes to the server over the fork socket."""
        ours, theirs = socket_pair()
        socket.send_fds(fork_socket, [b"\0"], [theirs.fileno()])
        theirs.close()
        return cls(ours)

    def open_call(self, inbox: Inbox) -> int:
        """A number for a call whose answers are to go to `inbox`."""
        number = next(self._numbers)
        self._inboxes[number] = inbox
        return number

    def close_call(self, number: int) -> None:
        """No more answers are awaited."""
        self._inboxes.pop(number, None)

    def receive(self, inbox: Inbox) -> Received:
        """Wait for a message."""
        try:
            self.mailbox.wait(inbox)
        except EOFError:
            raise TritonModelException("The server is gone.") from None
        return inbox.messages.popleft()

    def call_service(self, action: str, arguments: dict[str, Any]) -> Any:
        """Have the server do something; its value, or TritonModelException with its error."""
        inbox = Inbox()
        number = self.open_call(inbox)
        try:
            self.outbox.send(lambda _: ServiceCall(number, action, arguments))
            reply = self.receive(inbox).frame
        finally:
            self.close_call(number)
        assert isinstance(reply, ServiceReply)
        if reply.error is not None:
            raise TritonModelException(reply.error)
        return reply.value

    def close(self) -> None:
        """End it."""
        self.mailbox.end()
        self.outbox.close()
        self.outbox.channel.close()

    def __repr__(self) -> str:
        return f"<Connection calls={len(self._inboxes)} {self.outbox!r}>"

    def _on_reply(self, received: Received) -> Waiter | None:
        frame = received.frame
        assert isinstance(frame, InferReply | ServiceReply)
        inbox = self._inboxes.get(frame.call)
        return None if inbox is None else inbox.take(received)
