# SPDX-License-Identifier: Apache-2.0
"""Both ends of the chunks of small requests: a front end sends them, the core submits them.

The columns of a chunk are written once, into the message or into shared memory, and stay there: an
instance gets them from there. Answers come back as rows, or one by one if something is unusual.
"""

from __future__ import annotations

import itertools
import time
import weakref
from typing import TYPE_CHECKING, Any

from pytriton.base.columns import Column, ColumnKind
from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.errors import error_for_clients, error_from_code
from pytriton.base.messages import (
    InferRequest,
    RequestCost,
)
from pytriton.runtime.executor.columns import (
    Chunk,
    ChunkRun,
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.runtime.executor.inference import Outcome
from pytriton.runtime.transport.frontend_frames import (
    ChunkItem,
    ColumnRef,
    DefineSignature,
    MemberKind,
    SignatureColumn,
)
from pytriton.serving.engine.delivery import deliver, deliver_run, refuse
from pytriton.serving.server.frontend.records import as_batch_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        InferResponse,
    )
    from pytriton.runtime.executor.columns import Buffer
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frontend_frames import ReplyItem, RowsItem
    from pytriton.serving.engine.observers import Observers
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.frontend.remote_client import RemoteModel
    from pytriton.serving.server.frontend.reply_outbox import ReplyOutbox


# While this number of chunks is at the core, the next one is worth waiting for an answer: 16 % more
# requests for 64 clients of 4 front ends, in a simulation with the measured costs of the core.
_FULL_COUNT = 4
_QUICK_ANSWER_NS = 1_000_000


class ChunkFlow:
    """The chunks of one model between a front end and the core, and how soon they are answered."""

    __slots__ = ("answer_ns", "open_count")

    def __init__(self) -> None:
        self.open_count = 0  # of chunks that are not answered completely
        self.answer_ns = _QUICK_ANSWER_NS  # how long the last one took

    @property
    def is_full(self) -> bool:
        """Whether the core has work, and the next answer is near: more requests may wait for it.

        A message costs the core as much as 15 requests do, so few large ones are better.
        """
        return self.open_count >= _FULL_COUNT and self.answer_ns < _QUICK_ANSWER_NS


class OpenChunk:
    """A chunk that has requests without an answer."""

    __slots__ = ("flow", "left", "members", "sent_ns")

    def __init__(self, members: Sequence[Inference], flow: ChunkFlow) -> None:
        self.members = members
        self.left = len(members)
        self.flow = flow
        self.sent_ns = time.monotonic_ns()
        flow.open_count += 1

    def end(self) -> None:
        """Tell the flow that all requests are answered."""
        flow = self.flow
        flow.open_count -= 1
        flow.answer_ns = time.monotonic_ns() - self.sent_ns


class ChunkSender:
    """The chunks of one front end that are on their way.

    `define` sends a signature to the core, before the chunks that use it. `resubmit` submits a
    member as a request of its own.
    """

    def __init__(
        self,
        define: Callable[[DefineSignature], None],
        resubmit: Callable[[Inference], None],
    ) -> None:
        self._define = define
        self._resubmit = resubmit
        self._open: dict[int, OpenChunk] = {}
        self._calls: dict[Chunk, int] = {}
        # A signature is freed when its gatherer is forgotten and its last chunk is answered. The
        # core hears of that with the next definition, so it never knows more than are needed here.
        self._signatures: weakref.WeakKeyDictionary[ChunkSignature, int] = (
            weakref.WeakKeyDictionary()
        )
        self._forgotten: list[int] = []  # the numbers of those that were freed
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    # Sending

    def make_item(
        self, call: int, model: RemoteModel, members: Sequence[Inference], payload: Payload
    ) -> tuple[ChunkItem, int]:
        """Returns the record of a chunk, and the number of its bytes inside the message.

        Raises:
            UnavailableError: There is no memory for its columns.
        """
        chunk = members[0].chunk
        assert chunk is not None, "expected members of a chunk"
        signature = chunk.signature
        count = len(members)
        columns = []
        inline_bytes = 0
        for index, column in enumerate(signature.inputs):
            pieces = chunk.pieces(index, 0, count)
            sizes = [] if column.row_bytes else [len(piece) for piece in pieces]
            size = chunk.row_starts[count] * column.row_bytes or sum(sizes)
            block, offset = payload.add(pieces, size)
            columns.append(ColumnRef(offset, size, block, sizes))
            inline_bytes += size if not block else 0
        request = members[0].request
        item = ChunkItem(
            call,
            self._number_of(signature, model),
            count,
            request.received_ns,
            columns,
            *_kinds_of(members),
            request.model_version,
        )
        if chunk.trace is not None:
            chunk.trace.sent(item)
        self._open[call] = OpenChunk(members, model.flow)  # last, as the rest may raise
        self._calls[chunk] = call
        return item, inline_bytes

    def _number_of(self, signature: ChunkSignature, model: RemoteModel) -> int:
        number = self._signatures.get(signature)
        if number is None:
            number = self._signatures[signature] = next(self._numbers)
            # The garbage collector may run this in the middle of anything, so it only appends a
            # number.
            weakref.finalize(signature, self._forgotten.append, number).atexit = False
            forgotten = self._forgotten[:]
            del self._forgotten[: len(forgotten)]  # a garbage collection may add some meanwhile
            columns = [
                SignatureColumn(column.name, column.dtype.number, column.shape, column.row_bytes)
                for column in signature.inputs
            ]
            self._define(
                DefineSignature(
                    number,
                    model.number,
                    columns,
                    signature.outputs,
                    signature.batch_key,
                    forgotten,
                    signature.is_batched,
                )
            )
        return number

    def place_of(self, inference: Inference) -> tuple[int, int] | None:
        """Returns the call and the index of a member; None if its chunk was answered."""
        assert inference.chunk is not None
        call = self._calls.get(inference.chunk)
        return None if call is None else (call, inference.index)

    def fail(self, call: int, error: Any) -> None:
        """End all requests of a chunk that could not be sent."""
        opened = self._open[call]
        self._count(call, opened, opened.left)
        for member in opened.members:
            deliver(member, Outcome(0, None, error))

    # Answers

    def on_rows(self, received: Received, item: RowsItem) -> None:
        """Pass on the answers to neighbours of a chunk."""
        opened = self._open[item.call]
        chunk = opened.members[item.first].chunk
        assert chunk is not None
        starts = chunk.row_starts
        rows = starts[item.end] - starts[item.first]
        members = list(opened.members[item.first : item.end])
        if item.cost is not None and chunk.trace is not None:
            chunk.trace.charged(item.first, item.end, item.cost)
        self._count(item.call, opened, len(members))
        try:
            outputs = [
                Column(
                    ref.name,
                    BY_NUMBER[ref.dtype],
                    ref.shape,
                    0 if ref.pieces else ref.size // rows,
                    received.buffer(ref),
                    list(itertools.accumulate(ref.pieces, initial=0)) if ref.pieces else (),
                )
                for ref in item.outputs
            ]
        except Exception as failure:  # noqa: BLE001  the clients get it
            error = error_for_clients(failure, "it read responses of the core")
            for member in members:
                deliver(member, Outcome(0, None, error))
            return
        deliver_run(members, ChunkRun(chunk, item.first, item.end, item.first, 0, outputs))

    def on_reply(
        self, item: ReplyItem, response: InferResponse | None, error: ServerError | None
    ) -> None:
        """Pass on the end of one request, or of all that are left if they have to be repeated."""
        # The model was replaced: requests that were not answered are submitted one by one.
        opened = self._open[item.call]
        if item.is_outdated:
            self._count(item.call, opened, opened.left)
            for member in opened.members:
                if not member.is_over:
                    self._resubmit(member)
            return
        member = opened.members[item.index]
        self._count(item.call, opened, 1)
        if item.error is not None:
            error = error_from_code(item.error_code, item.error, retry_after_s=item.retry_after_s)
            if item.is_refused:
                refuse(member, error)
                return
        deliver(member, Outcome(0, response, error))

    def note_cost(self, item: ReplyItem, cost: RequestCost) -> None:
        """Note what a member that is about to end has cost."""
        chunk = self.member(item).chunk
        if chunk is not None and chunk.trace is not None:
            chunk.trace.charged(item.index, item.index + 1, cost)

    def member(self, item: ReplyItem) -> Inference:
        """Returns the request that a reply is for."""
        return self._open[item.call].members[item.index]

    def _count(self, call: int, opened: OpenChunk, count: int) -> None:
        opened.left -= count
        if not opened.left:
            opened.end()
            del self._open[call]
            chunk = opened.members[0].chunk
            assert chunk is not None
            del self._calls[chunk]


def _kinds_of(members: Sequence[Inference]) -> tuple[list[MemberKind], list[int]]:
    """Returns the kinds of members, and the place of that of each; see `ChunkItem`."""
    requests = [member.request for member in members]
    first = requests[0]
    if requests.count(first) == len(requests):  # usually all members share one
        return [MemberKind(first.rows, first.fields)], []
    kind_of = list(range(len(requests)))
    distinct = dict.fromkeys(requests)
    if len(distinct) < len(requests):  # all of them differ if they have ids, for example
        places = dict(zip(distinct, kind_of, strict=False))
        kind_of = [places[request] for request in requests]
    return [MemberKind(request.rows, request.fields) for request in distinct], kind_of


def read_signature(frame: DefineSignature) -> ChunkSignature:
    """Returns the signature that a front end has defined."""
    inputs = [
        ColumnKind(column.name, BY_NUMBER[column.dtype], column.shape, column.row_bytes)
        for column in frame.inputs
    ]
    key = as_batch_key(frame.batch_key)
    return ChunkSignature(tuple(inputs), frame.outputs, key, frame.is_batched)


class FrontEndChunk(Chunk, kw_only=True, eq=False):
    """A chunk of a front end, whose columns stay in the message in which they came; see `Chunk`.

    Attributes:
        call: The number that the front end has given it.
        received: The message.
        columns: Where in the message the bytes of each input are.
        is_ordered: Whether its model preserves the order of requests.
    """

    call: int
    received: Received
    columns: list[ColumnRef]
    is_ordered: bool
    costs: dict[int, RequestCost] | None = None  # of members by index, if the front end wants them
    places: dict[int, list[int]] | None = None  # of members in columns whose sizes differ

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        ref, starts = self.columns[column], self.row_starts
        if end - first == len(starts) - 1:  # the usual case
            return [self.received.column(ref, 0, ref.size)]
        if ref.sizes:
            places = self._places(column, ref.sizes)
            return [self.received.column(ref, places[first], places[end])]
        row_bytes = self.signature.inputs[column].row_bytes
        return [self.received.column(ref, starts[first] * row_bytes, starts[end] * row_bytes)]

    def _places(self, column: int, sizes: Sequence[int]) -> list[int]:
        """Returns where the bytes of each member begin; one after another asks for its own."""
        if self.places is None:
            self.places = {}
        places = self.places.get(column)
        if places is None:
            places = self.places[column] = list(itertools.accumulate(sizes, initial=0))
        return places


class FrontEndChunks:
    """The chunks of a front end that are not answered yet; sends the answers of their members."""

    def __init__(self, outbox: ReplyOutbox, observers: Observers) -> None:
        self._outbox = outbox
        self._observers = observers
        self._chunks: dict[int, FrontEndChunk] = {}

    def submit(
        self, received: Received, item: ChunkItem, signature: ChunkSignature, model: ServedModel
    ) -> None:
        """Queue all requests of a chunk."""
        call, count, spec = item.call, item.count, model.spec
        row_starts = _row_starts(item)
        # The message may have blocks of other chunks, which are freed as soon as nobody needs them.
        if received.blocks:
            received = received.restricted(item.columns)
        chunk = FrontEndChunk(
            signature,
            self,
            row_starts,
            open_count=count,
            call=call,
            received=received,
            columns=item.columns,
            is_ordered=spec.is_ordered,
        )
        requests = _read_requests(item, signature, spec.identifier)
        members = make_members(chunk, model, requests)
        if self._observers.are_there:
            chunk.origins, chunk.costs = item.origins, {} if item.wants_cost else None
            self._observers.begin_chunk(chunk, model)
        self._chunks[call] = chunk
        if model.quotas is None:
            model.submit_chunk(members, time.monotonic_ns())
        else:
            model.quotas.submit_chunk(model, members, time.monotonic_ns())

    def cancel(self, call: int, index: int) -> None:
        """Cancel one request, if its chunk was not answered yet."""
        chunk = self._chunks.get(call)
        if chunk is not None:
            chunk.members[index].cancel()

    def cancel_all(self) -> None:
        """Cancel all requests: the front end has ended."""
        chunks, self._chunks = self._chunks, {}
        for chunk in chunks.values():
            for member in chunk.members:
                member.cancel()

    def __len__(self) -> int:
        return len(self._chunks)

    def __repr__(self) -> str:
        return f"<RemoteChunks {len(self)} not answered>"

    # Answers

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Send the answers of neighbours."""
        starts = chunk.row_starts
        outbox = self._outbox
        if chunk.is_ordered:
            outbox.flush_items()  # a front end passes on the rows of a message first
        rows = starts[end] - starts[first]
        # Neighbours that are answered together were executed together, and have equal rows.
        cost = None if chunk.costs is None else chunk.costs.get(first)
        outbox.add_rows(chunk.call, first, end, outputs, row, rows, cost)
        self._count(chunk, end - first)

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Send the end of one request."""
        cost = None if chunk.costs is None else chunk.costs.get(index)
        if error is not None:
            self._outbox.add_error(chunk.call, error, is_refused=is_refused, index=index, cost=cost)
        else:
            self._outbox.add_response(chunk.call, response, is_final=True, index=index, cost=cost)
        self._count(chunk, 1)

    def _count(self, chunk: FrontEndChunk, count: int) -> None:
        if chunk.end(count):
            self._chunks.pop(chunk.call, None)


def _row_starts(item: ChunkItem) -> Sequence[int]:
    """Returns the number of rows before each member of a chunk, and of all."""
    kinds = item.kinds
    rows = kinds[0].rows
    if len(kinds) == 1 or all(each.rows == rows for each in kinds):
        return range(0, (item.count + 1) * rows, rows)
    return list(itertools.accumulate([kinds[place].rows for place in item.kind_of], initial=0))


def _read_requests(
    item: ChunkItem, signature: ChunkSignature, model_name: str
) -> InferRequest | list[InferRequest]:
    """Returns the record that all members share, or that of each."""
    received_ns, version = item.received_ns, item.model_version
    made = [
        shared_request(model_name, signature, received_ns, each.fields, each.rows, version)
        for each in item.kinds
    ]
    return [made[place] for place in item.kind_of] if item.kind_of else made[0]
