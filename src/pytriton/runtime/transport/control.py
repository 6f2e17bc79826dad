# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and a process that binds models, on a socket of their own."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import msgspec

from pytriton.base.documentation import Documentation
from pytriton.base.log_lines import SentLines
from pytriton.runtime.transport.frames import FunctionSource
from pytriton.runtime.transport.link import RecordLink


class ServerStart(msgspec.Struct, tag="start", array_like=True):
    """Binder to its own server, first: the settings. A command line would show the secrets."""

    config: dict[str, Any]
    awaits_models: bool = False  # the server is not ready before `ModelsServed` comes


class Join(msgspec.Struct, tag="join", array_like=True):
    """Another process of the same user to a server, first: it wants to bind models, too."""

    token: str  # the value that the header for a restricted model repository must have


class AskAccess(msgspec.Struct, tag="ask", array_like=True):
    """A command of the same user to a server, first and only: it wants to be let in."""


class ServerAccess(msgspec.Struct, tag="access", array_like=True):
    """Server to a command: where it listens, and what opens its APIs; the values are secrets.

    The headers are those of the restricted APIs, by their whole names. The page has a token of its
    own, which is empty if there is no page.
    """

    ports: tuple[int, int, int]  # of HTTP, gRPC and metrics; 0 if it is off
    addresses: tuple[str, str, str]  # that it listens on, in the same order
    http_headers: dict[str, str]
    grpc_headers: dict[str, str]
    page_token: str
    uses_tls: tuple[bool, bool, bool] = (False, False, False)  # in the order of the ports
    hides_exceptions: bool | None = None  # whether clients get no texts of them; None: not told

    def __repr__(self) -> str:
        return f"ServerAccess(ports={self.ports}, addresses={self.addresses}, …)"


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
    documentation: Documentation = Documentation()  # what its author says of it
    nullable: tuple[str, ...] = ()  # inputs that are None if a request has null for them


class Unbind(msgspec.Struct, tag="unbind", array_like=True):
    """Binder to server: stop serving this model."""

    call: int
    name: str
    version: int


class ModelsServed(msgspec.Struct, tag="serving", array_like=True):
    """Binder to server: its first models are served, or it has none for the time being."""


class ServerStop(msgspec.Struct, tag="stop", array_like=True):
    """Binder to its own server: finish running requests, then exit."""


class LinesLogged(msgspec.Struct, tag="lines", array_like=True):
    """Binder to server: lines for its page. The next ones come when these are taken."""

    lines: SentLines


class LinesTaken(msgspec.Struct, tag="taken", array_like=True):
    """Server to binder: the last `LinesLogged` was read."""


class Started(msgspec.Struct, tag="started", array_like=True):
    """Server to binder, first: the open ports; 0 if a protocol is off."""

    http_port: int
    grpc_port: int
    metrics_port: int
    keeps_lines: bool = False  # it has a page, which shows what this process prints and logs
    uses_tls: tuple[bool, bool, bool] = (False, False, False)  # in the order of the ports


class CallDone(msgspec.Struct, tag="done", array_like=True):
    """Server to binder: a call succeeded or failed. Call 0 is the start."""

    call: int
    error: str = ""
    error_code: int = 0


ControlMessage = (
    ServerStart
    | Join
    | AskAccess
    | ServerAccess
    | Bind
    | Unbind
    | ModelsServed
    | ServerStop
    | LinesLogged
    | LinesTaken
    | Started
    | CallDone
)

# More than any model's configuration. Other processes of the user may connect to this socket.
_MAX_MESSAGE_BYTES = 16 << 20

_decoder = msgspec.msgpack.Decoder(ControlMessage)


class ControlLink(RecordLink[ControlMessage]):
    """Either end of the control socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _decoder, _MAX_MESSAGE_BYTES)

    def shut_down(self) -> None:
        """End the connection for both sides; a thread that waits in `receive` wakes up."""
        with contextlib.suppress(OSError):  # it has ended already
            self.socket.shutdown(socket.SHUT_RDWR)
