# SPDX-License-Identifier: Apache-2.0
"""Small requests that travel together as columns: a chunk has one buffer for each input.

The requests of a chunk have one model and one signature. Each is an `Inference` (a member), so that
queues, deadlines and cancellation treat it like any other request, but it has no tensor objects:
its bytes are a part of the chunk's columns, and its answer is a part of the batch's output columns.

How to use it, for a model that `takes_columns`:

1. Make a `ChunkSignature` once and keep it: for all requests with these inputs and outputs.
2. Make a chunk of your own, a request record for all members, or for each one (`shared_request`),
   and the members (`make_members`).
3. Give the members to `ServedModel.submit_chunk`. From then on the chunk's sink hears of each
   member exactly once. `Inference.cancel` cancels one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.base.columns import Column, ColumnKind
from pytriton.base.messages import NO_FIELDS, InferRequest, InferTensor, RequestFields
from pytriton.runtime.executor.inference import CLOSED_SINK, Inference, InferenceOwner

if TYPE_CHECKING:
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ChunkOrigins, ExecutionTrace, InferResponse, ResponseSink

    Buffer = bytes | bytearray | memoryview

# Rows of an output that are larger and lie in shared memory, or in a large message, are worth a
# response for each request, which passes them on by reference.
LARGE_ROW_BYTES = 4 << 10


class ChunkSignature(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The common structure of the requests of a chunk."""

    # The inputs of each request in the model's order, without optional ones that are missing.
    inputs: tuple[ColumnKind, ...]
    outputs: tuple[str, ...] | None = None  # the requested outputs; None: all
    batch_key: Any = None  # what `engine.validation.validate` sets as the key of such a request
    is_batched: bool = True  # their model has a batch dimension


class Chunk(msgspec.Struct, eq=False):
    """Requests of one signature, numbered by an index from 0, and the bytes of their inputs.

    A subclass knows where these bytes are.
    """

    signature: ChunkSignature
    sink: ChunkSink
    # The number of rows before each member, and of all: one number more than there are members.
    # It is a `range` if all have the same number, and for models without a batch dimension.
    row_starts: Sequence[int] = ()
    # By index, until all are answered; see `end`.
    members: list[Inference] = []
    open_count: int = 0  # of members that were not answered yet
    has_fields: bool = False  # whether members may have ids or parameters
    trace: ExecutionTrace | None = None  # None: no member is traced
    origins: ChunkOrigins | None = None  # of members that may be traced
    # Under which the responses of members are cached, if their model has a cache, and how long it
    # took to look for each. Together, they take half the time of keys that members have.
    cache_keys: Sequence[bytes] = ()
    cache_ns: int = 0

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        """Returns the bytes of an input of the members `first` to `end` (without `end`)."""
        raise NotImplementedError

    def inputs_of(self, index: int, rows: int) -> dict[str, InferTensor]:
        """Returns the inputs of a member that has these rows, as an ordinary request has them."""
        inputs = {}
        is_batched = self.signature.is_batched
        for position, column in enumerate(self.signature.inputs):
            pieces = self.pieces(position, index, index + 1)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            inputs[column.name] = column.with_data(rows, data, is_batched=is_batched)
        return inputs

    def request_of(self, index: int) -> InferRequest:
        """Returns a member as if it had come alone."""
        request = self.members[index].request
        return msgspec.structs.replace(request, inputs=self.inputs_of(index, request.rows))

    def origin(self) -> ChunkOrigins | None:
        """Returns where its members came from; see `Members` in `engine.observers`."""
        return self.origins

    def member_sink(self, index: int) -> ResponseSink:
        """Returns a sink for one member, which passes its calls on to `sink`."""
        return MemberSink(self, index)

    def end(self, count: int) -> bool:
        """Count members that were answered; returns whether those were the last ones.

        Then the chunk forgets its members, which refer to it: a cycle would stay in memory until
        the next garbage collection.
        """
        self.open_count -= count
        if self.open_count:
            return False
        self.members = []
        return True

    def __repr__(self) -> str:
        count = len(self.row_starts) - 1
        return f"<{type(self).__name__} of {count} requests, {len(self.members)} running>"


class ChunkSink(Protocol):
    """Receives the answers of a chunk's members: each ends exactly once, by one of the methods."""

    def on_rows(
        self, chunk: Chunk, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Receive the answers of the members `first` to `end` (without `end`), in one batch.

        If this raises, it counts as if it had answered none of them: `on_outcome` is called for
        each of them with an error.

        `outputs` are those requested, of the whole batch, in the order of the model's answer. The
        rows of `first` begin at `row`; those of the others follow, as `chunk.row_starts` says.
        """

    def on_outcome(
        self,
        chunk: Chunk,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Receive any other end of one member: a response of its own, or an error.

        It has a response of its own if that has large outputs in shared memory, or if it was
        answered by itself. `is_refused` says that no model has seen the request, for
        example because a queue is full.
        """


class MemberSink:
    """The sink of one member; made when it ends in another way than by `on_rows`."""

    __slots__ = ("_chunk", "_index")

    def __init__(self, chunk: Chunk, index: int) -> None:
        self._chunk = chunk
        self._index = index

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass on the only response."""
        assert final, "a member of a chunk has one response"
        self._chunk.sink.on_outcome(self._chunk, self._index, response, None, is_refused=False)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass on an error."""
        assert final, "a member of a chunk has one error"
        self._chunk.sink.on_outcome(self._chunk, self._index, None, error, is_refused=False)

    def on_refused(self, error: ServerError) -> None:
        """Pass on a refusal."""
        self._chunk.sink.on_outcome(self._chunk, self._index, None, error, is_refused=True)


def shared_request(
    model_name: str,
    signature: ChunkSignature,
    received_ns: int,
    fields: RequestFields = NO_FIELDS,
    rows: int = 1,
    version: str = "",
) -> InferRequest:
    """Returns the record for all members of a chunk that have these rows and fields.

    `received_ns` is the mean of all members of the chunk, and `version` is as in the requests. A
    model with sequences needs a record for each member, because it adds inputs to it.
    """
    return InferRequest(
        model_name,
        {},
        version,
        fields,
        signature.outputs,
        received_ns,
        rows=rows,
        batch_key=signature.batch_key,
    )


def make_members(
    chunk: Chunk, owner: InferenceOwner, requests: InferRequest | Iterable[InferRequest]
) -> list[Inference]:
    """Make the members of a chunk for a model; returns them in the order of their indices.

    `requests` is the record that all share, or that of each member.
    """
    sink = CLOSED_SINK  # `chunk.sink` is told instead
    if isinstance(requests, InferRequest):
        chunk.has_fields = bool(requests.fields.id or requests.fields.parameters)
        members = [
            Inference(requests, sink, None, owner, chunk, index)
            for index in range(len(chunk.row_starts) - 1)
        ]
    else:
        chunk.has_fields = True
        members = [
            Inference(request, sink, None, owner, chunk, index)
            for index, request in enumerate(requests)
        ]
    chunk.members = members
    return members


class ChunkRun(msgspec.Struct, eq=False, gc=False):
    """Members of one chunk that are neighbours there and also in a batch, in the same order."""

    chunk: Chunk
    first: int  # index in the chunk
    end: int  # index after the last one
    position: int  # of the first one in the batch
    row: int  # of the first one in the batch
    outputs: Sequence[Column] = ()  # of the whole batch, once it is answered

    @property
    def count(self) -> int:
        """The number of members."""
        return self.end - self.first

    @property
    def rows(self) -> int:
        """The number of their rows."""
        starts = self.chunk.row_starts
        return starts[self.end] - starts[self.first]

    def rows_of_each(self) -> list[int]:
        """Returns the number of rows of each member."""
        starts, first, end = self.chunk.row_starts, self.first, self.end
        if isinstance(starts, range):
            return [starts.step] * (end - first)
        return [starts[index + 1] - starts[index] for index in range(first, end)]

    def split(self) -> list[ChunkRun]:
        """Returns a run for each of its members."""
        starts = self.chunk.row_starts
        position, row = self.position - self.first, self.row - starts[self.first]
        return [
            ChunkRun(
                self.chunk, index, index + 1, position + index, row + starts[index], self.outputs
            )
            for index in range(self.first, self.end)
        ]


def find_runs(inferences: Sequence[Inference]) -> list[ChunkRun]:
    """Returns the runs among the requests of a batch; other requests are in none."""
    if inferences[0].chunk is None:
        chunks = [inference.chunk for inference in inferences]
        if chunks.count(None) == len(chunks):
            return []
    return _find_whole_runs(inferences) or _find_mixed_runs(inferences)


def _find_whole_runs(inferences: Sequence[Inference]) -> list[ChunkRun]:
    """Returns the runs of a batch in which chunks follow one another, each up to its end.

    Empty if the batch has anything else. To compare lists takes a fifth of the time that it takes
    to look at each request.
    """
    runs: list[ChunkRun] = []
    count = len(inferences)
    position = row = 0
    while position < count:
        inference = inferences[position]
        chunk, first = inference.chunk, inference.index
        if chunk is None:
            return []
        members = chunk.members[first : first + count - position]
        after = position + len(members)
        if not members or inferences[position:after] != members:
            return []
        end = first + len(members)
        runs.append(ChunkRun(chunk, first, end, position, row))
        row += chunk.row_starts[end] - chunk.row_starts[first]
        position = after
    return runs


def _find_mixed_runs(inferences: Sequence[Inference]) -> list[ChunkRun]:
    runs: list[ChunkRun] = []
    row = 0
    chunk: Chunk | None = None
    index = -1  # of the member that would continue the last run
    for position, inference in enumerate(inferences):
        if inference.chunk is not chunk or inference.index != index:
            if chunk is not None:
                runs[-1].end = index
                row += runs[-1].rows
            chunk, index = inference.chunk, inference.index
            if chunk is not None:
                runs.append(ChunkRun(chunk, index, index, position, row))
        if chunk is None:
            row += inference.request.rows
        else:
            index += 1
    if chunk is not None:
        runs[-1].end = index
    return runs
