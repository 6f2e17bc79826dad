# SPDX-License-Identifier: Apache-2.0
"""Gathers small requests of one signature into chunks, which their model takes as columns.

The requests that arrive in one iteration of the event loop become one chunk. It is submitted at the
end of the iteration, or as soon as the model would start a batch.
"""
# ruff: noqa: RUF012  these are structs of msgspec, which copies defaults

from __future__ import annotations

from math import prod
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pytriton.base import dtypes
from pytriton.base.columns import Column, ColumnKind, structure_of
from pytriton.base.errors import ServerError, error_for_clients
from pytriton.base.messages import (
    NO_FIELDS,
    ChunkOrigins,
    InferRequest,
    InferResponse,
    InferTensor,
    RequestFields,
    RequestPath,
)
from pytriton.runtime.executor.columns import (
    Chunk,
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.serving.engine.validation import validate

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.columns import (
        Buffer,
        ChunkSink,
    )
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.observers import Observers
    from pytriton.serving.engine.served_model import ServedModel

MAX_MEMBERS = 256
# How many requests are gathered before the model is asked whether it would start, and how many more
# before it is asked again. A model with fewer waiting requests never starts before the end.
_ASK_FROM = 16
_ASK_EVERY = 4
_ALONE = RequestPath.ALONE  # to look up an enum's member takes 0.16 us on Python 3.11
_MAX_HELD = 4  # iterations for which requests wait for a core that is behind


class GatheredChunk(Chunk, kw_only=True, eq=False):
    """A chunk to which requests are added until it is submitted.

    After that, only its sink changes it: by `end`, once for each member.
    """

    model: ServedModel
    rows: int  # of each member
    version: str
    callers: list[Any] = []  # of the members, for the sink to answer
    inputs: list[Sequence[Buffer]] = []  # of each member, until it is submitted
    fields: list[RequestFields] = []  # of each member
    received_ns: int = 0  # the sum of all
    columns: list[tuple[Buffer, ...]] = []  # once it is submitted

    def submit(
        self,
        order: Sequence[int] | None,
        observers: Observers,
        *,
        is_complete: bool,
    ) -> None:
        """Submit it to its model, after it was shown to observers; for `order` see `Gatherer`."""
        count = self.open_count = len(self.callers)
        # From one tuple for each request to one for each input: the bytes themselves are not
        # copied.
        columns = list(zip(*self.inputs, strict=True))
        self.columns = columns if order is None else [columns[place] for place in order]
        self.inputs = []
        rows = self.rows
        self.row_starts = range(0, (count + 1) * rows, rows)
        model = self.model
        members = make_members(self, model, self._requests(self.received_ns // count))
        if observers.are_there:
            observers.begin_chunk(self, model)
        if model.quotas is None:
            model.submit_chunk(members, monotonic_ns(), is_complete=is_complete)
        else:
            model.quotas.submit_chunk(model, members, monotonic_ns(), is_complete=is_complete)

    def _requests(self, received_ns: int) -> InferRequest | list[InferRequest]:
        """Returns the record that all members share, or that of each."""
        signature, rows, version = self.signature, self.rows, self.version
        name, fields = self.model.spec.identifier, self.fields
        # Members with the same fields share a record. Those of sequences cannot: a scheduler adds
        # inputs to each.
        if self.model.spec.sequence is None and fields.count(fields[0]) == len(fields):
            return shared_request(
                name, signature, received_ns, fields[0], rows=rows, version=version
            )
        shared: dict[int, InferRequest] = {}  # by the identity of fields: principals share theirs
        requests = []
        for each in fields:
            request = shared.get(id(each))
            if request is None or self.model.spec.sequence is not None:
                request = shared[id(each)] = shared_request(
                    name, signature, received_ns, each, rows=rows, version=version
                )
            requests.append(request)
        return requests

    def origin(self) -> ChunkOrigins:
        """Returns where its members came from; see `Members`."""
        began_ns = [getattr(caller, "began_ns", 0) for caller in self.callers]
        sink: Any = self.sink  # that of a protocol
        return ChunkOrigins(sink.protocol, list(range(len(began_ns))), began_ns)

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        return list(self.columns[column][first:end])


class Iterations:
    """Tells the gatherers of a port when an iteration of the event loop has read all requests."""

    def __init__(self, engine: EngineClient, loop: asyncio.AbstractEventLoop) -> None:
        self.observers = engine.observers
        self._engine = engine
        self._loop = loop
        self._due: list[Gatherer] = []
        self._is_end_due = False
        self._held_count = 0  # iterations for which the chunks were held back
        self.count = 0  # of requests in this iteration, for all gatherers
        self.last_count = 0  # in the last iteration with a request

    def add(self, gatherer: Gatherer) -> None:
        """Call `Gatherer.end_iteration` at the end of this iteration."""
        self._due.append(gatherer)
        self._end_soon()

    def _end_soon(self) -> None:
        # Callbacks run after all sockets of this iteration were read.
        if not self._is_end_due:
            self._is_end_due = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._is_end_due = False
        # A core that has not read the last message would only read this one later, too. More
        # requests in one message cost it less: 5 to 17 % more throughput at 64 connections.
        if self._held_count < _MAX_HELD and self._engine.is_behind:
            self._held_count += 1
            self._end_soon()
            return
        models = [gatherer.model for gatherer in self._due]
        if not self._engine.call_after_answers(models, self._submit):
            self._submit()

    def _submit(self) -> None:
        """Submit the chunks; there are none if other models could not wait for answers."""
        self._held_count = 0
        self.last_count, self.count = self.count, 0
        due, self._due = self._due, []
        if len(due) == 1:  # as nearly always: requests of one kind, for one model
            due[0].end_iteration(is_complete=True)
            return
        # Only the last chunk of a model is complete, so that all of them may share a batch.
        last = {gatherer.model: gatherer for gatherer in due}
        for gatherer in due:
            gatherer.end_iteration(is_complete=last[gatherer.model] is gatherer)


class Gatherer:
    """Gathers the requests of one signature, with equal rows.

    `order` has the place of each input of the signature among those that `add` gets. For a model
    without a batch dimension, each request has one row.
    """

    def __init__(
        self,
        iterations: Iterations,
        signature: ChunkSignature,
        rows: int,
        version: str,
        order: Sequence[int],
        sink: ChunkSink,
    ) -> None:
        self._iterations = iterations
        self._signature = signature
        self._rows = rows
        self._version = version
        self._order = None if list(order) == sorted(order) else order
        self._sink = sink
        self._chunk: GatheredChunk | None = None
        self._is_end_due = False

    def count(self) -> None:
        """Count a request, gathered or not: its iteration tells how many come in the next one."""
        iterations = self._iterations
        iterations.count += 1
        if not self._is_end_due:
            self._is_end_due = True
            iterations.add(self)

    def is_alone(self, model: ServedModel) -> bool:
        """Returns whether it is better not to gather the request that was counted last.

        That is the case if it probably is the only one of its iteration, as the last one was. Two
        or more in a chunk take less time than in the ordinary way, but one takes more, unless the
        model prefers columns.
        """
        # The second request of an iteration is never alone, and the first is gathered if the last
        # iteration had more than one.
        iterations = self._iterations
        return iterations.count == iterations.last_count == 1 and not model.prefers_columns

    def add(
        self,
        model: ServedModel,
        inputs: Sequence[Buffer],
        caller: Any,
        fields: RequestFields = NO_FIELDS,
    ) -> tuple[GatheredChunk, int]:
        """Add a valid request that is not alone; returns its chunk and its index there.

        It was counted. `inputs` are its bytes, and `caller` is whom the sink answers.
        """
        chunk = self._chunk
        if chunk is None or chunk.model is not model:
            chunk = self._begin(model)
        chunk.fields.append(fields)
        chunk.inputs.append(inputs)
        chunk.received_ns += monotonic_ns()
        chunk.callers.append(caller)
        count = len(chunk.callers)
        # The model is not asked each time: a few requests more or less make no difference to it.
        if (
            count >= _ASK_FROM
            and not count % _ASK_EVERY
            and (count >= MAX_MEMBERS or model.is_start_due(count))
        ):
            self._submit(is_complete=False)
        return chunk, count - 1

    def submit(self) -> None:
        """Submit the gathered requests now, because a later one takes another way."""
        self._submit(is_complete=False)

    def cancel(self, chunk: GatheredChunk, index: int) -> None:
        """Cancel a request: nobody waits for its answer any more."""
        # A member can only be cancelled once it is submitted; the others are not harmed by that.
        if chunk is self._chunk:
            self._submit(is_complete=False)
        if chunk.members:
            chunk.members[index].cancel()

    def _begin(self, model: ServedModel) -> GatheredChunk:
        # A chunk has one model, so that of the old one goes first.
        if self._chunk is not None:  # of a model that was replaced
            self._submit(is_complete=False)
        self._chunk = GatheredChunk(
            self._signature, self._sink, model=model, rows=self._rows, version=self._version
        )
        return self._chunk

    @property
    def model(self) -> ServedModel | None:
        """The model of the chunk that is being gathered."""
        return None if self._chunk is None else self._chunk.model

    def end_iteration(self, *, is_complete: bool) -> None:
        """Submit the requests of this iteration; `is_complete` is for `submit_chunk`."""
        self._is_end_due = False
        if self._chunk is not None:
            self._submit(is_complete=is_complete)

    def _submit(self, *, is_complete: bool) -> None:
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            chunk.submit(self._order, self._iterations.observers, is_complete=is_complete)


class ResponsePattern(Protocol):
    """Writes the responses of many requests with the same outputs at once."""

    structure: Any  # see `structure_of`


_Pattern = TypeVar("_Pattern", bound=ResponsePattern)


class ColumnSink(Generic[_Pattern]):
    """Gathers the requests for a model that differ in the bytes of their inputs and their fields.

    This is the common part of HTTP, gRPC calls and gRPC streams. A subclass is the sink of the
    chunks (see `ChunkSink`): it answers the callers, and calls `GatheredChunk.end` for each member.
    `request` is a valid one; all others have the same inputs, shapes and requested outputs.
    """

    protocol = "GRPC"  # as traces name it

    def __init__(
        self,
        iterations: Iterations,
        spec: ModelSpec,
        request: InferRequest,
        make_pattern: Callable[..., _Pattern],
    ) -> None:
        self.spec = spec
        self.version = request.model_version
        self.rows = request.rows if spec.max_batch_size else None  # the batch dimension of each
        sink: Any = self  # subclasses have the methods of `ChunkSink`
        self.gatherer = _gatherer(iterations, spec, request, sink)
        self._make_pattern = make_pattern
        self._pattern: _Pattern | None = None
        self._tensors = [(each.name, each.dtype, each.shape) for each in request.inputs.values()]
        self._outputs = request.outputs
        self._rows, self._batch_key = request.rows, request.batch_key

    def lone_request(self, inputs: Sequence[Buffer], fields: RequestFields) -> InferRequest:
        """Returns the record of a request that is alone; `inputs` are in the client's order."""
        tensors = {}
        for (name, dtype, shape), data in zip(self._tensors, inputs, strict=True):
            tensors[name] = InferTensor(name, dtype, shape, data)
        return InferRequest(
            self.spec.identifier,
            tensors,
            self.version,
            fields,
            self._outputs,
            path=_ALONE,
            rows=self._rows,
            batch_key=self._batch_key,
        )

    def response_pattern(self, outputs: Sequence[Column]) -> _Pattern:
        """Returns the encoder for the outputs of a batch: mostly the one of the last batch."""
        pattern = self._pattern
        if pattern is None or pattern.structure != structure_of(outputs):
            spec = self.spec
            pattern = self._pattern = self._make_pattern(
                spec.name, str(spec.version), self.rows, outputs, spec.answer_parameters
            )
        return pattern

    def respond_each(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Answer one by one, because the responses have what a pattern cannot write."""
        rows = self.rows or 1
        for index in range(first, end):
            response = self._response(chunk.fields[index].id, outputs, row, row + rows)
            row += rows
            try:
                self.on_outcome(chunk, index, response, None, is_refused=False)
            except Exception as failure:  # noqa: BLE001  it is logged
                error = error_for_clients(failure, "it wrote a response")
                self.on_outcome(chunk, index, None, error, is_refused=False)

    def _response(
        self, request_id: str, outputs: Sequence[Column], row: int, end: int
    ) -> InferResponse:
        """Returns the response with these rows."""
        spec, is_batched = self.spec, self.rows is not None
        tensors = [column.tensor(row, end, is_batched=is_batched) for column in outputs]
        return InferResponse(
            spec.name, str(spec.version), request_id, tensors, spec.answer_parameters
        )

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """See `ChunkSink`."""
        raise NotImplementedError


def can_be_columns(request: InferRequest, spec: ModelSpec, *, with_strings: bool = False) -> bool:
    """Returns whether requests like this one are valid, and have inputs of a fixed size.

    `with_strings` allows BYTES, too, if the caller checks the strings of each request.
    """
    try:
        validate(request, spec)
    except ServerError:
        return False
    has_strings = any(tensor.dtype is dtypes.BYTES for tensor in request.inputs.values())
    # A scheduler of sequences fills empty slots with rows of a fixed size.
    return not has_strings or (with_strings and spec.sequence is None)


def _gatherer(
    iterations: Iterations, spec: ModelSpec, request: InferRequest, sink: ChunkSink
) -> Gatherer:
    # A client may send inputs in any order; the columns of a signature are in the model's.
    sent = [name for name in spec.inputs if name in request.inputs]
    is_batched = spec.max_batch_size > 0
    columns = [_column(request.inputs[name], is_batched=is_batched) for name in sent]
    signature = ChunkSignature(tuple(columns), request.outputs, request.batch_key, is_batched)
    names = list(request.inputs)
    order = [names.index(name) for name in sent]
    return Gatherer(iterations, signature, request.rows, request.model_version, order, sink)


def _column(tensor: InferTensor, *, is_batched: bool) -> ColumnKind:
    shape = tensor.shape[1:] if is_batched else tensor.shape
    return ColumnKind(tensor.name, tensor.dtype, shape, prod(shape) * tensor.dtype.itemsize)
