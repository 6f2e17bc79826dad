# SPDX-License-Identifier: Apache-2.0
"""The gRPC services: maps methods to calls, and authorises clients.

Every call passes through `open_call`, which looks up the method and then checks authorisation.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.lazy_module import LazyModule
from pytriton.protocol.grpc import (
    GrpcStatus,
    MessageAssembler,
    encode_http_error,
    encode_trailers_only,
)
from pytriton.protocol.http2 import Http2Connection, Http2Limits
from pytriton.serving.server.access.decisions import Denial, Scope, patterns_of
from pytriton.serving.server.api.authorization import Authorization, RestrictedProtocol
from pytriton.serving.server.api.background import Background, LoopBudget
from pytriton.serving.server.api.http2_transport import FlushQueue
from pytriton.serving.server.api.refusals import INFERENCE, note_forbidden
from pytriton.serving.server.api.shortage import UnreadAnswers
from pytriton.serving.server.api.status import retry_metadata
from pytriton.serving.server.api.turns import Turns, message_units
from pytriton.serving.server.grpc import health, reflection
from pytriton.serving.server.grpc.call import RefusedGrpcCall, UnaryCall, header_of
from pytriton.serving.server.grpc.call_state import ENDED
from pytriton.serving.server.grpc.call_work import CallWork
from pytriton.serving.server.grpc.columns import ColumnCall
from pytriton.serving.server.grpc.connection import READ_BYTES, GrpcConnection
from pytriton.serving.server.grpc.infer import InferService, ModelInferCall
from pytriton.serving.server.grpc.stream import MAX_UNREAD_BYTES, StreamColumnTable, StreamInferCall
from pytriton.serving.server.grpc.timeouts import ping_intervals_ns, tick_s
from pytriton.serving.server.operations.operation import Desk
from pytriton.serving.server.operations.table import OPERATIONS
from pytriton.serving.server.process.clients import ConnectionSet
from pytriton.serving.server.shared_memory.shared_memory import local_shared_memory

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.access.control import AccessControl, Grant
    from pytriton.serving.server.api.request_memory import RequestMemory
    from pytriton.serving.server.grpc import guard
    from pytriton.serving.server.grpc.call import GrpcCall
    from pytriton.serving.server.grpc.columns import CallTable
    from pytriton.serving.server.grpc.guard import CallGuard
    from pytriton.serving.server.operations.operation import Operation, OverGrpc
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory
else:
    guard = LazyModule("pytriton.serving.server.grpc.guard")

_PREFIX = "/inference.GRPCInferenceService"
# The limit on the queued output of a call. A stream is reset if half of it is queued and another
# response comes, so a whole message always fits.
_MAX_QUEUED_BYTES = 2 * MAX_UNREAD_BYTES


class GrpcMethod(NamedTuple):
    """A method of a service."""

    make_call: Callable[[GrpcConnection, int, CallHead], GrpcCall]
    api: str  # the group of methods that it belongs to for authorisation
    is_restricted: bool


class GrpcApi:
    """Answers the calls of all gRPC connections."""

    def __init__(
        self,
        engine: EngineClient,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        shared_memory: ClientSharedMemory | None = None,
        request_memory: RequestMemory | None = None,
        access: AccessControl | None = None,
        operations: Iterable[Operation] = OPERATIONS,
    ) -> None:
        shared_memory = shared_memory or local_shared_memory(
            engine, loop, is_allowed=options.allow_client_shared_memory
        )
        self.connections: ConnectionSet[GrpcConnection] = ConnectionSet()
        # Called with the head of each call; None: nobody wants to know it.
        self.on_arrival: Callable[[CallHead], None] | None = None
        self.tasks = BackgroundTasks(loop)
        self.work = CallWork(self.tasks, Background(loop, "grpc"), LoopBudget(loop), request_memory)
        self.unread = UnreadAnswers(loop)  # a front end has one for all of its ports
        self.keepalive = options.grpc_keepalive
        self.limits = options.limits
        self.max_message_bytes = options.limits.grpc_max_message_bytes
        self.http2_limits = _http2_limits(options)
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self._loop = loop
        self._engine = engine
        self._authorization = Authorization(
            options.grpc_restricted, RestrictedProtocol.GRPC, access=access
        )
        self._guard: CallGuard | None = None
        if access is not None:
            self._guard = guard.CallGuard(self._authorization, access)
            access.on_changed.append(self._end_outdated_streams)
        self._health = health.HealthService(engine)
        self._methods: dict[str, GrpcMethod] = {}  # by path
        infer = InferService(engine, options, loop, shared_memory)
        stream_columns = StreamColumnTable(engine, loop)
        infer.guard = self._guard
        # Those that decide which requests travel as columns.
        self.column_tables: list[CallTable | StreamColumnTable] = [stream_columns]
        if infer.columns is not None:
            self.column_tables.append(infer.columns)
        for table in self.column_tables:
            table.guard = self._guard
        self._add_methods(infer, stream_columns)
        self._add_operations(operations, Desk(engine, options.id, shared_memory))
        self.flushes = FlushQueue(loop)
        self.turns = Turns(loop)
        self._tick_s = tick_s(options.grpc_keepalive)
        self._ticker: asyncio.TimerHandle | None = None
        # Makes connections that somebody observes; None: nobody does.
        self.make_observed: Callable[[Http2Limits, GrpcConnection], Http2Connection] | None = None

    def make_connection(self) -> GrpcConnection:
        if self._ticker is None:
            self._ticker = self._loop.call_later(self._tick_s, self._tick)
        return GrpcConnection(self, self._loop)

    def make_http2(self, connection: GrpcConnection) -> Http2Connection:
        if self.make_observed is None:
            return Http2Connection(self.http2_limits)
        return self.make_observed(self.http2_limits, connection)

    def open_call(
        self, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> GrpcCall | None:
        """Returns the call that a head requests; None if it was answered already."""
        method = self._methods.get(head.path)
        if head.http_status is not None:
            block = encode_http_error(head.http_status)
        elif head.error is not None:
            block = encode_trailers_only(head.error.status, head.error.message)
        elif method is None:
            text = f"unknown method {head.path}"
            return RefusedGrpcCall(GrpcStatus.UNIMPLEMENTED, text, connection, stream_id, head)
        elif method.is_restricted and (denial := self._denial(connection, method, head)):
            if method.api == INFERENCE:
                note_forbidden(self._engine, denial.message)
            status, metadata = GrpcStatus(denial.grpc_status), retry_metadata(denial)
            return RefusedGrpcCall(status, denial.message, connection, stream_id, head, metadata)
        else:
            return method.make_call(connection, stream_id, head)
        connection.refuse(stream_id, block)
        return None

    def _denial(
        self, connection: GrpcConnection, method: GrpcMethod, head: CallHead
    ) -> Denial | None:
        if self._guard is not None:
            return self._guard.denial(connection, head, method.api)
        found = self._authorization.decide(method.api, Scope.NONE, header_of(head), connection)
        return found if isinstance(found, Denial) else None

    def _end_outdated_streams(self) -> None:
        """End streams whose senders have lost their rights by a change of the policy."""
        assert self._guard is not None
        for connection in list(self.connections):
            for call in connection.open_calls():
                if not isinstance(call, UnaryCall | ColumnCall | RefusedGrpcCall):
                    api = self._methods[call.head.path].api
                    self._guard.end_outdated(connection, call, api)

    # Periodic checks and shutdown

    def _tick(self) -> None:
        self._ticker = None
        self._health.notify()
        now_ns = time.monotonic_ns()
        for connection in list(self.connections):
            connection.check(now_ns)
        if self.connections:
            self._ticker = self._loop.call_later(self._tick_s, self._tick)

    def begin_shutdown(self) -> None:
        """Ask all clients to open no more calls."""
        for connection in list(self.connections):
            connection.begin_shutdown()

    def close(self) -> None:
        """Cancel the running tasks and stop the threads."""
        self.tasks.cancel()
        self.work.background.close()

    # Methods

    def _add_methods(self, infer: InferService, stream_columns: StreamColumnTable) -> None:
        self._add(f"{_PREFIX}/ModelInfer", INFERENCE, ModelInferCall, infer)
        path = f"{_PREFIX}/ModelStreamInfer"
        self._add(path, INFERENCE, StreamInferCall, infer, stream_columns)
        self._add(f"/{health.SERVICE}/Check", "health", health.CheckCall, self._health)
        self._add(f"/{health.SERVICE}/Watch", "health", health.WatchCall, self._health)
        for package in reflection.PACKAGES:
            path = f"/{package}.ServerReflection/ServerReflectionInfo"
            service = reflection.ReflectionService(package)
            self._add(path, "metadata", reflection.ReflectionCall, service)

    def _add_operations(self, operations: Iterable[Operation], desk: Desk) -> None:
        for each in operations:
            if each.grpc is not None:
                path = f"{_PREFIX}/{each.grpc.method}"
                self._add(path, each.api, OperationCall, each, each.grpc, desk, self._guard)

    def _add(
        self, path: str, api: str, call_class: Callable[..., GrpcCall], *settings: Any
    ) -> None:
        make_call = functools.partial(call_class, *settings)
        no_headers: dict[bytes, bytes] = {}
        is_restricted = (
            self._guard is not None or self._authorization.refusal(api, no_headers.get) is not None
        )
        self._methods[path] = GrpcMethod(make_call, api, is_restricted)


def _http2_limits(options: ServerOptions) -> Http2Limits:
    interval_ns, idle_interval_ns = ping_intervals_ns(options.grpc_keepalive)
    return Http2Limits(
        max_queued_bytes=_MAX_QUEUED_BYTES,
        max_stall_ns=int(options.limits.write_stall_timeout_s * 1e9),
        min_ping_interval_ns=interval_ns,
        min_idle_ping_interval_ns=idle_interval_ns,
        max_ping_strikes=options.grpc_keepalive.max_ping_strikes or 2**62,
    )


class OperationCall(UnaryCall):
    """A call of an operation; it is answered at once or by a coroutine."""

    __slots__ = ("_desk", "_grant", "_grpc", "_guard", "_operation")

    def __init__(
        self,
        operation: Operation,
        grpc: OverGrpc,
        desk: Desk,
        guard: CallGuard | None,
        connection: GrpcConnection,
        stream_id: int,
        head: CallHead,
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._operation = operation
        self._grpc = grpc
        self._desk = desk
        self._guard = guard  # None: there is no policy
        self._grant: Grant | None = None  # who asks, even if the head is refused later

    def make_assembler(self) -> MessageAssembler:
        """Returns an assembler without the limit for small messages, if files may be sent."""
        grant = self.head.grant
        has_files = self._operation.has_files
        if not has_files or (grant is not None and patterns_of(grant.principal) is not None):
            return super().make_assembler()
        connection = self.connection
        return MessageAssembler(
            connection.max_message_bytes,
            self.head.encoding,
            open_lease=connection.work.memory.lease,
        )

    def on_request(self, message: Buffer) -> None:
        operation, grpc = self._operation, self._grpc
        request = grpc.request(message)
        if self._guard is not None:
            subject = operation.scope if grpc.subject is None else grpc.subject(request)
            self._guard.check(self.connection, self.head, operation.api, subject)
            self._grant = self.head.grant
        desk = self._desk.of(self._grant)
        if grpc.check is not None:
            grpc.check(desk)
        answer = operation.begin(desk, grpc, request)
        if inspect.iscoroutine(answer):
            self.connection.work.run_task(self, self._respond_later(answer))
        else:
            self._send(answer)

    async def _respond_later(self, answer: Coroutine[Any, Any, Any]) -> None:
        value = await answer
        if self.state is not ENDED:
            self._send(value)

    def _send(self, value: Any) -> None:
        message = self._grpc.response(self._operation.shown(self._grant, value))
        self.connection.turn.spend(message_units(message))
        self.respond([message])
