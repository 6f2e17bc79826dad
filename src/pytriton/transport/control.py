# SPDX-License-Identifier: Apache-2.0
"""What a process that binds models and the server say, beside the instances' channels."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.transport.link import StreamLink

if TYPE_CHECKING:
    from collections.abc import Sequence


class Start(msgspec.Struct, tag="start", array_like=True):
    """Binder to its own server, first: the settings. A command line would show the secrets."""

    config: dict[str, Any]


class Join(msgspec.Struct, tag="join", array_like=True):
    """Another process of the same user to a server, first: it wants to bind models, too."""

    token: str  # what the header of a restricted model repository would have to be


class Bind(msgspec.Struct, tag="bind", array_like=True):
    """Binder to server: serve this model. One socket for each instance comes along."""

    call: int
    config: dict[str, Any]  # Triton's ModelConfig
    version: int
    concurrency: list[int]  # batches that each instance takes at a time


class Unbind(msgspec.Struct, tag="unbind", array_like=True):
    """Binder to server: stop serving this model."""

    call: int
    name: str
    version: int


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """Binder to its own server: finish what runs, then end."""


class Started(msgspec.Struct, tag="started", array_like=True):
    """Server to binder, first: the ports that are open; 0 where a protocol is off."""

    http_port: int
    grpc_port: int
    metrics_port: int


class Done(msgspec.Struct, tag="done", array_like=True):
    """Server to binder: a call ended, well or with an error. Call 0 is the start."""

    call: int
    error: str = ""
    error_code: int = 0


ControlMessage = Start | Join | Bind | Unbind | Stop | Started | Done

_MAX_MESSAGE_BYTES = 16 << 20  # more than any model's configuration

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ControlMessage)


class ControlLink:
    """Control messages over a stream socket. EOFError means that the other side is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._link = StreamLink(sock, _MAX_MESSAGE_BYTES)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.socket.fileno()

    def send(self, message: ControlMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message; on a non-blocking socket what does not fit is queued, see `flush`."""
        self._link.send(_encoder.encode(message), descriptors)

    def flush(self) -> bool:
        """Send what is queued; whether nothing is left."""
        self._link.flush()
        return not self._link.has_unsent

    def receive(self) -> ControlMessage | None:
        """The next message; None where a non-blocking socket has none.

        Raises:
            EOFError: The other side is gone.
            ValueError: What came is no message.
        """
        message = self._link.receive()
        if message is None:
            return None
        if not message:
            raise EOFError
        decoded: ControlMessage = _decoder.decode(message)
        return decoded

    def take_descriptors(self, count: int) -> list[int]:
        """The descriptors that came with the last message; the caller owns them."""
        return self._link.take_descriptors(count)

    def shut_down(self) -> None:
        """End the connection for both sides; whoever waits in `receive` here wakes up."""
        with contextlib.suppress(OSError):  # it has ended already
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
