# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and a process that binds models, on a socket of their own."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.runtime.transport.link import StreamLink
from pytriton.runtime.transport.worker_frames import FunctionSource

if TYPE_CHECKING:
    from collections.abc import Sequence


class Start(msgspec.Struct, tag="start", array_like=True):
    """Binder to its own server, first: the settings. A command line would show the secrets."""

    config: dict[str, Any]
    awaits_models: bool = False  # the server is not ready before `Serving` comes


class Join(msgspec.Struct, tag="join", array_like=True):
    """Another process of the same user to a server, first: it wants to bind models, too."""

    token: str  # the value that the header for a restricted model repository must have


class RayInstances(msgspec.Struct, array_like=True):
    """The instances of a model whose function runs on a cluster, and what each of them needs."""

    function: FunctionSource
    minimum: int
    maximum: int
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    group_size: int
    is_spread: bool
    start_timeout_s: float
    target: float
    up_after_s: float
    down_after_s: float


class Bind(msgspec.Struct, tag="bind", array_like=True):
    """Binder to server: serve this model.

    The message comes with one socket per instance, unless the instances run on a cluster.
    """

    call: int
    config: dict[str, Any]  # Triton's ModelConfig
    version: int
    concurrency: list[int]  # of each instance: batches that it runs at the same time
    initial_states: dict[str, bytes] = {}  # of its sequences, by the state's input
    ray: RayInstances | None = None  # None: its instances are in the binding process
    takes_parameters: bool = True  # False: the function gets the inputs of a request only


class Unbind(msgspec.Struct, tag="unbind", array_like=True):
    """Binder to server: stop serving this model."""

    call: int
    name: str
    version: int


class Serving(msgspec.Struct, tag="serving", array_like=True):
    """Binder to server: its first models are served, or it has none for the time being."""


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """Binder to its own server: finish running requests, then exit."""


class Started(msgspec.Struct, tag="started", array_like=True):
    """Server to binder, first: the open ports; 0 if a protocol is off."""

    http_port: int
    grpc_port: int
    metrics_port: int


class Done(msgspec.Struct, tag="done", array_like=True):
    """Server to binder: a call succeeded or failed. Call 0 is the start."""

    call: int
    error: str = ""
    error_code: int = 0


ControlMessage = Start | Join | Bind | Unbind | Serving | Stop | Started | Done

_MAX_MESSAGE_BYTES = 16 << 20  # more than any model's configuration

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ControlMessage)


class ControlLink:
    """Control messages over a stream socket. EOFError means that the peer closed the connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._link = StreamLink(sock, _MAX_MESSAGE_BYTES)

    def fileno(self) -> int:
        """Returns the socket's file descriptor."""
        return self.socket.fileno()

    def send(self, message: ControlMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message; a non-blocking socket queues the data that does not fit, see `flush`."""
        self._link.send(_encoder.encode(message), descriptors)

    def flush(self) -> bool:
        """Send queued data; returns whether all of it was sent."""
        self._link.flush()
        return not self._link.has_unsent

    def receive(self) -> ControlMessage | None:
        """Returns the next message; None if a non-blocking socket has none.

        Raises:
            EOFError: The peer closed the connection.
            ValueError: The received data is not a valid message.
        """
        message = self._link.receive()
        if message is None:
            return None
        if not message:
            raise EOFError
        decoded: ControlMessage = _decoder.decode(message)
        return decoded

    def take_descriptors(self, count: int) -> list[int]:
        """Returns the file descriptors that came with the last message; the caller owns them."""
        return self._link.take_descriptors(count)

    def shut_down(self) -> None:
        """End the connection for both sides; a thread that waits in `receive` wakes up."""
        with contextlib.suppress(OSError):  # it has ended already
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
