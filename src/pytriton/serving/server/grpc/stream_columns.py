# SPDX-License-Identifier: Apache-2.0
"""Streamed requests of sequences that travel as columns, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.kserve_pb_sequence import StreamedResponsePattern
from pytriton.serving.server.api.gatherer import ColumnSink
from pytriton.serving.server.grpc.columns import SequenceColumnTable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.columns import OutputColumn
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.api.gatherer import Iterations
    from pytriton.serving.server.grpc.stream import StreamInferCall
    from pytriton.serving.server.grpc.streamed_request import StreamedMember
    from pytriton.serving.server.tracing.tracing import TraceBeginner


class StreamColumns(ColumnSink[StreamedResponsePattern]):
    """Gathers and answers streamed requests with one set of inputs for a model."""

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        super().__init__(iterations, spec, request, StreamedResponsePattern)

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        members: list[StreamedMember] = chunk.callers[first:end]
        pattern = self.response_pattern(outputs)
        messages = list(pattern.encode(outputs, row, [member.id for member in members]))
        at = 0
        # The requests of one call are mostly next to each other: one write for all of them.
        while at < len(members):
            call, start = members[at].call, at
            while at < len(members) and members[at].call is call:
                at += 1
            call.deliver_framed(members[start:at], messages[start:at])
        chunk.end(end - first)

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Answer one request like one that is not in a chunk."""
        member: StreamedMember = chunk.callers[index]
        member.become_ordinary(self.spec)
        if error is None:
            assert response is not None, "a member has a response or an error"
            response.id = member.parsed.id
            member.on_response(response, final=True)
        elif is_refused:
            member.on_refused(error)
        else:
            member.on_error(error)
        chunk.end(1)


class StreamColumnTable(SequenceColumnTable[StreamColumns]):
    """The layouts of streamed requests of sequences that repeat.

    Args:
        engine: The engine.
        loop: The event loop.
        tracing: Traces requests, if the server does.
    """

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        tracing: TraceBeginner | None = None,
    ) -> None:
        super().__init__(engine, loop, StreamColumns, tracing)

    def take(self, call: StreamInferCall, message: Buffer) -> bool:
        """Add a request to a chunk; returns False if it has to take the ordinary way."""
        if not self.has_size(len(message)) or not isinstance(message, bytes):
            return False
        found = self.find(message)
        if found is None:
            return False
        model, columns, read = found
        gatherer = columns.gatherer
        member = call.add_member(message, read.id, gatherer)
        place = (read.correlation_id, read.flags, read.id.decode("ascii"))
        member.chunk, member.index = gatherer.add(model, read.inputs, member, place)
        return True
