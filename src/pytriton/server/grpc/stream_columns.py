# SPDX-License-Identifier: Apache-2.0
"""Small streamed requests of sequences that travel as columns, because many like them came before.

They differ in their ids, in the flags of their sequences and in the bytes of their tensors. All
others take the ordinary way, after those that came before them: the requests of a sequence keep
their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton import dtypes
from pytriton.engine.validation import validate
from pytriton.errors import ServerError
from pytriton.server.api.gatherer import Iterations, gatherer_for
from pytriton.server.grpc.columns import LEARN_EVERY, MAX_LAYOUTS, MAX_MESSAGE_BYTES
from pytriton.wire.kserve_pb_pattern import structure_of
from pytriton.wire.kserve_pb_sequence import (
    SequencePattern,
    StreamedResponsePattern,
    sequence_layout_of,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.dtypes import Buffer
    from pytriton.engine.client import EngineClient
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.engine.served_model import ServedModel
    from pytriton.executor.columns import OutputColumn
    from pytriton.messages import InferRequest, InferResponse
    from pytriton.server.grpc.stream import StreamInferCall
    from pytriton.server.grpc.streamed_request import StreamedMember
    from pytriton.wire.kserve_pb_sequence import SequenceLayout, SequenceRequest


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


class StreamColumnTable:
    """The layouts of requests of sequences that repeat.

    Args:
        engine: The engine.
        loop: The event loop.
    """

    def __init__(self, engine: EngineClient, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._iterations = Iterations(loop)
        self._counts: dict[int, int] = {}  # of requests in the ordinary way, by size
        self._learned: dict[SequenceLayout, StreamColumns] = {}
        self._by_size: dict[int, list[tuple[SequencePattern, StreamColumns]]] = {}
        # By what the requests of a chunk have in common.
        self._columns: dict[Any, StreamColumns] = {}
        self._last: StreamColumns | None = None  # to which a request was added

    def take(self, call: StreamInferCall, message: Buffer) -> bool:
        """Add a request to a chunk; returns False if it has to take the ordinary way."""
        if isinstance(message, bytes):
            for pattern, columns in self._by_size.get(len(message), ()):
                request = pattern.read(message)
                if request is not None:
                    return self._add(call, message, columns, request)
        return False

    def _add(
        self, call: StreamInferCall, message: bytes, columns: StreamColumns, read: SequenceRequest
    ) -> bool:
        engine, spec, gatherer = self._engine, columns.spec, columns.gatherer
        model = engine.find(spec.name, columns.version)
        if model is None or model.spec is not spec or engine.is_exiting or gatherer.is_alone(model):
            return False
        if self._last is not columns:
            self.submit()
            self._last = columns
        member = call.add_member(message, read.id, gatherer)
        member.chunk, member.index = gatherer.add_in_sequence(
            model, read.inputs, member, (read.correlation_id, read.flags)
        )
        return True

    def submit(self) -> None:
        """Submit what was gathered, because a request takes another way."""
        if self._last is not None:
            self._last.gatherer.submit()

    def learn(
        self, model: ServedModel, request: InferRequest, message: Buffer, raw: Sequence[Buffer]
    ) -> None:
        """Count a request that takes the ordinary way; after some, learn its layout."""
        size = len(message)
        if size > MAX_MESSAGE_BYTES or not isinstance(message, bytes):
            return
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count % LEARN_EVERY or not model.takes_columns:
            return
        layout = sequence_layout_of(message, raw)
        if layout is None or not _is_valid(request, model.spec):
            return
        known = self._learned.get(layout)
        if known is not None and known.spec is model.spec:
            return
        pattern = SequencePattern(layout)
        read = pattern.read(message)
        if read is not None and _says(read, request):
            self._keep(layout, pattern, self._columns_for(model.spec, request))

    def _columns_for(self, spec: ModelSpec, request: InferRequest) -> StreamColumns:
        """Returns the columns of requests that may share a chunk with this one."""
        tensors = [(each.name, each.dtype, each.shape) for each in request.inputs.values()]
        key = (spec.name, request.model_version, tuple(tensors), request.outputs)
        columns = self._columns.get(key)
        if columns is None or columns.spec is not spec:
            columns = self._columns[key] = StreamColumns(self._iterations, spec, request)
        return columns

    def _keep(
        self, layout: SequenceLayout, pattern: SequencePattern, columns: StreamColumns
    ) -> None:
        if len(self._learned) >= MAX_LAYOUTS:
            self._learned.clear()
            self._by_size.clear()
            self._columns.clear()
        if layout in self._learned:  # of a model that was replaced
            others = self._by_size[pattern.size]
            before = self._learned[layout]
            self._by_size[pattern.size] = [each for each in others if each[1] is not before]
        self._learned[layout] = columns
        self._by_size.setdefault(pattern.size, []).append((pattern, columns))


def _is_valid(request: InferRequest, spec: ModelSpec) -> bool:
    """Returns whether requests like this one may be in columns."""
    try:
        validate(request, spec)
    except ServerError:
        return False
    return not any(tensor.dtype is dtypes.BYTES for tensor in request.inputs.values())


def _says(read: SequenceRequest, request: InferRequest) -> bool:
    """Returns whether the pattern of a message has read what the parser has."""
    return (
        read.id == request.id.encode()
        and read.correlation_id == request.correlation_id
        and read.flags == request.flags
        and list(read.inputs) == [tensor.data for tensor in request.inputs.values()]
        and not (request.parameters or request.priority or request.timeout_us)
    )
