# SPDX-License-Identifier: Apache-2.0
"""What the server and the zygote, which forks worker processes for it, say to each other.

The zygote speaks over a stream socket that it inherits. When the server's end closes, it kills all
that it forked and ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytriton.transport.link import StreamLink

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence


class ForkWorker(msgspec.Struct, tag="fork", array_like=True):
    """Server to zygote: fork a worker. The sockets of its channel and for its forks come along."""

    call: int
    title: str  # of the process
    environment: dict[str, str] = {}  # what is changed in it


class Forked(msgspec.Struct, tag="forked", array_like=True):
    """Zygote to server: the worker is there, or the reason why not."""

    call: int
    pid: int  # 0: there is none
    error: str = ""


class Exited(msgspec.Struct, tag="exited", array_like=True):
    """Zygote to server: a worker ended; the status is the one of `os.waitpid`."""

    pid: int
    status: int


ZygoteMessage = ForkWorker | Forked | Exited

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ZygoteMessage)


class ZygoteLink:
    """Either end of the zygote's socket. EOFError means that the other side is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._link = StreamLink(sock)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._link.socket.fileno()

    @property
    def has_message(self) -> bool:
        """Whether a message was read already, so that the socket need not be readable."""
        return self._link.has_message

    def send(self, message: ZygoteMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message; on a non-blocking socket what does not fit is queued, see `flush`."""
        self._link.send(_encoder.encode(message), descriptors)

    def flush(self) -> bool:
        """Send what is queued; whether nothing is left."""
        self._link.flush()
        return not self._link.has_unsent

    def receive(self) -> ZygoteMessage | None:
        """The next message; None where a non-blocking socket has none."""
        message = self._link.receive()
        if message is None:
            return None
        if not message:
            raise EOFError
        decoded: ZygoteMessage = _decoder.decode(message)
        return decoded

    def take_descriptors(self, count: int) -> list[int]:
        """The descriptors that came with the last message; the caller owns them."""
        return self._link.take_descriptors(count)

    def close(self) -> None:
        """Close this end."""
        self._link.close()
