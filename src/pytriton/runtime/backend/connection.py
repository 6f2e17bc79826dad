# SPDX-License-Identifier: Apache-2.0
"""A process's connection to the server: its calls, and the delivery of their replies.

A worker has one connection, over which it also gets its batches. A process that it forks creates
its own connection: it sends a new socket to the server over the fork socket of its worker.
"""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING, Any

from pytriton.runtime.backend.mailbox import (
    Handler,
    LoopReader,
    Mailbox,
    MessageInbox,
    Waiter,
)
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import (
    Execute,
    Finalize,
    Finalized,
    InferReply,
    Initialize,
    ServiceCall,
    ServiceReply,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.response_outbox import ResponseOutbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.runtime.transport.channel import Channel, Received


class ServerConnection:
    """A channel with a mailbox, an outbox and the calls that wait for replies."""

    def __init__(self, channel: Channel) -> None:
        self.outbox = ResponseOutbox(channel)
        self.handlers: dict[type, Handler] = {
            InferReply: self._on_reply,
            ServiceReply: self._on_reply,
        }
        self.mailbox = Mailbox(self.outbox, self.handlers)
        self.loop_reader = LoopReader(self.mailbox)
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, MessageInbox] = {}

    @classmethod
    def of_worker(cls, channel: Channel) -> ServerConnection:
        """Create the connection of a worker, which gets jobs: its model, then batches."""
        connection = cls(channel)
        for kind in (Initialize, Execute, Finalize):
            connection.handlers[kind] = connection.mailbox.jobs.put
        return connection

    @classmethod
    def of_forked_process(cls, fork_socket: socket.socket) -> ServerConnection:
        """Create a connection; its other end is sent to the server over the fork socket."""
        ours, theirs = socket_pair()
        socket.send_fds(fork_socket, [b"\0"], [theirs.fileno()])
        theirs.close()
        return cls(MemoryChannel(ours, Arena()))

    def next_job(self) -> Received:
        """Wait for the next job of a worker; raises EOFError if the server has ended."""
        jobs = self.mailbox.jobs
        self.mailbox.wait(jobs)
        return jobs.messages.popleft()

    def open_call(self, inbox: MessageInbox) -> int:
        """Register a call whose replies go to `inbox`; returns its number."""
        number = next(self._numbers)
        self._inboxes[number] = inbox
        return number

    def close_call(self, number: int) -> None:
        """Remove a call; further replies are dropped."""
        self._inboxes.pop(number, None)

    def receive(self, inbox: MessageInbox) -> Received:
        """Wait for a message and return it."""
        try:
            self.mailbox.wait(inbox)
        except EOFError:
            raise TritonModelException("The server is gone.") from None
        return inbox.messages.popleft()

    def call_service(self, action: str, arguments: dict[str, Any]) -> Any:
        """Call a service of the server; returns its value or raises TritonModelException."""
        inbox = MessageInbox()
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
        """Close the connection."""
        self.mailbox.end()
        self.outbox.close()
        self.outbox.channel.close()

    def __repr__(self) -> str:
        return f"<Connection calls={len(self._inboxes)} {self.outbox!r}>"

    def _on_reply(self, received: Received) -> Waiter | None:
        frame = received.frame
        assert isinstance(frame, InferReply | ServiceReply)
        inbox = self._inboxes.get(frame.call)
        return None if inbox is None else inbox.put(received)


class GroupMember:
    """The place of this process in its group; a group of one is no group."""

    def __init__(self, arguments: Mapping[str, str], connection: ServerConnection) -> None:
        self.rank = int(arguments.get("model_group_rank", "0"))
        self.size = int(arguments.get("model_group_size", "1"))
        self._connection = connection

    @property
    def is_follower(self) -> bool:
        """Whether another process gets the batches."""
        return self.rank > 0

    def wait_for_end(self) -> None:
        """Wait until the model is to be finalized; raises EOFError if the server has ended."""
        while not isinstance(self._connection.next_job().frame, Finalize):
            pass

    def leave(self) -> None:
        """Say that the model is finalized, and wait for the others; returns if there are none.

        Raises:
            EOFError: The server has ended the group.
        """
        if self.size == 1:
            return
        self._connection.outbox.send(lambda _: Finalized())
        while True:
            self._connection.next_job()

    def __repr__(self) -> str:
        return f"<GroupMember {self.rank} of {self.size}>"
