# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and the zygote, which forks worker processes for it.

They are sent over a stream socket that the zygote inherits. When the server closes its end, the
zygote kills all processes that it forked and exits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytriton.runtime.transport.link import StreamLink

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence


class ForkWorker(msgspec.Struct, tag="fork", array_like=True):
    """Server to zygote: fork a worker. The message comes with its channel and its fork socket."""

    call: int
    title: str  # of the process
    environment: dict[str, str] = {}  # variables to set


class Forked(msgspec.Struct, tag="forked", array_like=True):
    """Zygote to server: the worker was forked, or the reason why not."""

    call: int
    pid: int  # 0: no worker was forked
    error_number: int = 0  # the reason, as a value of `errno`


class Exited(msgspec.Struct, tag="exited", array_like=True):
    """Zygote to server: a worker ended; the status is that of `os.waitpid`."""

    pid: int
    status: int


ZygoteMessage = ForkWorker | Forked | Exited

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ZygoteMessage)


class ZygoteLink:
    """Either end of the zygote's socket. EOFError means that the peer closed the connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._link = StreamLink(sock)

    def fileno(self) -> int:
        """Returns the socket's file descriptor."""
        return self._link.socket.fileno()

    @property
    def has_message(self) -> bool:
        """Whether a message is buffered already, so that polling the socket does not report it."""
        return self._link.has_message

    def send(self, message: ZygoteMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message; a non-blocking socket queues the data that does not fit, see `flush`."""
        self._link.send(_encoder.encode(message), descriptors)

    def flush(self) -> bool:
        """Send queued data; returns whether all of it was sent."""
        self._link.flush()
        return not self._link.has_unsent

    def receive(self) -> ZygoteMessage | None:
        """Returns the next message; None if a non-blocking socket has none."""
        message = self._link.receive()
        if message is None:
            return None
        if not message:
            raise EOFError
        decoded: ZygoteMessage = _decoder.decode(message)
        return decoded

    def take_descriptors(self, count: int) -> list[int]:
        """Returns the file descriptors that came with the last message; the caller owns them."""
        return self._link.take_descriptors(count)

    def close(self) -> None:
        """Close this end."""
        self._link.close()
