# SPDX-License-Identifier: Apache-2.0
"""Answers operations over gRPC: the methods beside inference, of the table of operations."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pytriton.protocol.grpc import MessageAssembler
from pytriton.serving.server.access.decisions import patterns_of
from pytriton.serving.server.api.turns import message_units
from pytriton.serving.server.grpc.call import UnaryCall
from pytriton.serving.server.grpc.call_state import ENDED

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.server.access.control import Grant
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.grpc.guard import CallGuard
    from pytriton.serving.server.operations.operation import Desk, Operation, OverGrpc


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
