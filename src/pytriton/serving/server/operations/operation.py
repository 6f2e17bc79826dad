# SPDX-License-Identifier: Apache-2.0
"""What an operation is: one thing that clients may ask of the server beside inference.

`OPERATIONS` in `table.py` has all of them. Made of it are the routes of the HTTP port, the methods
of gRPC, what a policy decides on, and the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import orjson
from google.protobuf.message import DecodeError

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.base.protos import service_pb2
from pytriton.protocol.repository import check_repository
from pytriton.serving.server.access.decisions import Scope

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.repository import LoadOverrides
    from pytriton.serving.engine.client import Answer, EngineClient
    from pytriton.serving.server.access.control import Grant
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OPTIONAL = re.compile(r"\[(.*)\]")
GET = frozenset({b"GET", b"HEAD"})
POST = frozenset({b"POST"})


class Desk:
    """Where a front end answers operations: what it needs for that, and who asks."""

    __slots__ = ("engine", "grant", "server_id", "shared_memory")

    def __init__(
        self,
        engine: EngineClient,
        server_id: str,
        shared_memory: ClientSharedMemory,
        grant: Grant | None = None,  # None: there is no policy
    ) -> None:
        self.engine = engine
        self.server_id = server_id
        self.shared_memory = shared_memory
        self.grant = grant

    def of(self, grant: Grant | None) -> Desk:
        """Returns the desk for a sender."""
        if grant is None:
            return self
        return Desk(self.engine, self.server_id, self.shared_memory, grant)

    def refuse_when_exiting(self) -> None:
        """Raise UnavailableError if the server accepts no more requests."""
        if self.engine.is_exiting:
            raise UnavailableError("Server exiting")


def core(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Desk, _P], _T]:
    """Let the core answer an operation, by a method of `LocalClient` with the same arguments."""

    def answer(desk: Desk, /, *args: _P.args, **arguments: _P.kwargs) -> _T:
        return desk.engine.ask(method, *args, **arguments)

    return answer


class JsonRequest(NamedTuple):
    """A request over HTTP: what its path names; its body is read when somebody asks for it."""

    name: str  # of a model or region
    version: str
    repository_name: str
    is_post: bool
    body: Callable[[], Buffer]  # a few options
    files: Callable[[], LoadOverrides | Callable[[], Any]]  # which are read later if they are large


class HttpPath(NamedTuple):
    """A path, as `/v2/models/{model}[/versions/{version}]`: names, and what may be left out.

    It is in the OpenAPI document if it has a summary; the answer is that of its schema.
    """

    template: str
    summary: str = ""
    id: str = ""
    schema: Mapping[str, Any] | None = {"type": "object"}  # None: the status says it all

    @property
    def plain(self) -> str:
        """The path without what may be left out."""
        return _OPTIONAL.sub("", self.template)

    @property
    def full(self) -> str:
        """The path with all that may be left out."""
        return _OPTIONAL.sub(r"\1", self.template)


def _json(value: Any) -> bytes:
    return b"" if value is None else orjson.dumps(value)


@dataclass(frozen=True, slots=True)
class OverHttp:
    """How an operation is asked for over HTTP, and answered as JSON."""

    paths: tuple[HttpPath, ...]
    methods: frozenset[bytes] = GET
    read: Callable[[JsonRequest], dict[str, Any]] | None = None  # None: see `Operation.takes`
    write: Callable[[Any], bytes] = _json  # a ServerError is the answer, too
    content_type: bytes = b"application/json"


@dataclass(frozen=True, slots=True)
class OverGrpc:
    """How an operation is asked for over gRPC, and answered as a message."""

    method: str  # its messages are called `<method>Request` and `<method>Response`
    read: Callable[[Any], dict[str, Any]] | None = None  # None: see `Operation.takes`
    write: Callable[[Any], dict[str, Any]] = lambda value: value or {}  # fields of the response
    # The model of a request, or what stands for it; None: that is `Operation.scope`.
    subject: Callable[[Any], str | Scope] | None = None
    check: Callable[[Desk], object] | None = None  # where only gRPC has one
    parse: Callable[[Buffer], Any] | None = None  # None: protobuf parses the request

    def request(self, message: Buffer) -> Any:
        """Parse a request; ServerError if it is malformed."""
        if self.parse is not None:
            return self.parse(message)
        try:
            return getattr(service_pb2, f"{self.method}Request").FromString(bytes(message))
        except DecodeError:
            raise InternalError("Unable to parse request") from None

    def response(self, value: Any) -> bytes:
        """Returns the message that answers a call."""
        made = getattr(service_pb2, f"{self.method}Response")(**self.write(value))
        message: bytes = made.SerializeToString()
        return message


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that clients may ask, over one protocol or both.

    These steps are the same for all, in this order. Each may raise a ServerError, which is the
    answer then:

    1. The sender needs the right `api`, and that to the model. Where none is named, `scope` says
       how rights to models apply.
    2. `check` says whether the server does this at all, before anything is read.
    3. The reader of the protocol makes arguments of the request; without one, the fields `takes`
       of a path or message are the arguments. No request may name a repository.
    4. `answer` gets the desk and these arguments. It returns a value, or a coroutine if it has to
       wait. `core(method)` lets the core answer; any other function runs in the front end.
    5. `shown` leaves out what the sender may not know.
    6. The writer of the protocol makes an answer of the value.

    Nothing here knows connections, and no reader or writer waits.
    """

    name: str
    api: str
    scope: Scope
    answer: Callable[..., Answer[Any]]
    takes: tuple[str, ...] = ()
    http: OverHttp | None = None
    grpc: OverGrpc | None = None
    check: Callable[[Desk], object] | None = None
    shown: Callable[[Grant | None, Any], Any] = lambda _, value: value
    has_files: bool = False  # its requests may be large

    def begin(self, desk: Desk, asked: OverHttp | OverGrpc, request: Any) -> Answer[Any]:
        """Check, read and answer the request of a sender with the rights for it: steps 2 to 4."""
        if self.check is not None:
            self.check(desk)
        check_repository(getattr(request, "repository_name", ""))
        if asked.read is not None:
            arguments = asked.read(request)
        else:
            arguments = {field: getattr(request, field) for field in self.takes}
        return self.answer(desk, **arguments)
