# SPDX-License-Identifier: Apache-2.0
"""Streamed requests of sequences that travel as columns, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.kserve_pb_pattern import structure_of
from pytriton.protocol.kserve_pb_sequence import StreamedResponsePattern
from pytriton.serving.server.api.gatherer import gatherer_for
from pytriton.serving.server.grpc.sequence_columns import SequenceColumnTable

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


class StreamColumns:
    """Gathers and answers the requests with one set of inputs for a model; it is their sink."""

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        self.spec = spec
        self.version = request.model_version
        self.gatherer = gatherer_for(iterations, spec, request, list(request.inputs), self)
        self._rows = request.rows if spec.max_batch_size else None
        self._answers: StreamedResponsePattern | None = None

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        answers, spec = self._answers, self.spec
        if answers is None or answers.structure != structure_of(outputs):
            answers = self._answers = StreamedResponsePattern(
                spec.name, str(spec.version), self._rows, outputs, spec.answer_parameters
            )
        members: list[StreamedMember] = chunk.callers[first:end]
        messages = list(answers.encode(outputs, row, [member.id for member in members]))
        at = 0
        while at < len(members):  # those of one call are next to each other
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
        member.chunk, member.index = gatherer.add_in_sequence(
            model, read.inputs, member, (read.correlation_id, read.flags, read.id.decode("ascii"))
        )
        return True
