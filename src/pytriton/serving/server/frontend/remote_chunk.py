# SPDX-License-Identifier: Apache-2.0
"""The core's side of chunks: small requests of a front end, and their answers."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.dtypes import BY_NUMBER
from pytriton.runtime.executor.columns import (
    InputColumn,
    MemberSink,
    Signature,
    make_members,
    shared_request,
)
from pytriton.serving.server.frontend.records import as_batch_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse, ResponseSink
    from pytriton.runtime.executor.columns import Buffer, ChunkSink, OutputColumn
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frontend_frames import ChunkItem, ColumnRef, DefineSignature
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.frontend.reply_outbox import ReplyOutbox


def read_signature(frame: DefineSignature) -> Signature:
    """Returns the signature that a front end has defined."""
    inputs = [
        InputColumn(column.name, BY_NUMBER[column.dtype], column.shape, column.row_bytes)
        for column in frame.inputs
    ]
    return Signature(tuple(inputs), frame.outputs, as_batch_key(frame.batch_key))


class FrontEndChunk(msgspec.Struct, eq=False):
    """A chunk of a front end, whose columns stay in the message in which they came; see `Chunk`.

    Attributes:
        call: The number that the front end has given it.
        received: The message.
        columns: Where in the message the bytes of each input are.
        open_count: The number of members that were not answered yet.
        is_ordered: Whether its model preserves the order of requests.
        members: Its members by index, until all of them are answered.
    """

    signature: Signature
    sink: ChunkSink
    row_starts: Sequence[int]
    call: int
    received: Received
    columns: list[ColumnRef]
    open_count: int
    is_ordered: bool
    members: list[Inference] = []

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        ref, starts = self.columns[column], self.row_starts
        if end - first == len(starts) - 1:  # the usual case
            return [self.received.column(ref, 0, ref.size)]
        row_bytes = self.signature.inputs[column].row_bytes
        return [self.received.column(ref, starts[first] * row_bytes, starts[end] * row_bytes)]

    def member_sink(self, index: int) -> ResponseSink:
        return MemberSink(self, index)


class FrontEndChunks:
    """The chunks of a front end that are not answered yet; sends the answers of their members."""

    def __init__(self, outbox: ReplyOutbox) -> None:
        self._outbox = outbox
        self._chunks: dict[int, FrontEndChunk] = {}

    def submit(
        self, received: Received, item: ChunkItem, signature: Signature, model: ServedModel
    ) -> None:
        """Queue all requests of a chunk."""
        call, count, spec = item.call, item.count, model.spec
        row_starts: Sequence[int] = range(count + 1)
        if item.rows:
            row_starts = list(itertools.accumulate(item.rows, initial=0))
        if received.blocks:
            received = received.restricted(item.columns)
        chunk = FrontEndChunk(
            signature, self, row_starts, call, received, item.columns, count, spec.is_ordered
        )
        requests = _read_requests(item, signature, spec.name)
        members = make_members(chunk, model, requests)
        self._chunks[call] = chunk
        model.submit_chunk(members, time.monotonic_ns())

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
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Send the answers of neighbours."""
        starts = chunk.row_starts
        outbox = self._outbox
        if chunk.is_ordered:
            outbox.flush_items()  # a front end passes on the rows of a message first
        outbox.add_rows(chunk.call, first, end, outputs, row, starts[end] - starts[first])
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
        if error is not None:
            self._outbox.add_error(chunk.call, error, is_refused=is_refused, index=index)
        else:
            self._outbox.add_response(chunk.call, response, is_final=True, index=index)
        self._count(chunk, 1)

    def _count(self, chunk: FrontEndChunk, count: int) -> None:
        chunk.open_count -= count
        if not chunk.open_count:
            chunk.members = []  # they refer to the chunk
            self._chunks.pop(chunk.call, None)


def _read_requests(
    item: ChunkItem, signature: Signature, model_name: str
) -> InferRequest | list[InferRequest]:
    """Returns the record of all members, or that of each; equal members share one."""
    received_ns, version = item.received_ns, item.model_version
    if not (item.rows or item.priorities or item.correlation_ids):
        return shared_request(model_name, signature, received_ns, version=version)
    ones, zeros = [1] * item.count, [0] * item.count
    details = list(
        zip(
            item.rows or ones,
            item.priorities or zeros,
            item.timeouts_us or zeros,
            item.correlation_ids or zeros,
            item.flags or zeros,
            item.ids or [""] * item.count,
            strict=True,
        )
    )

    def make(
        rows: int,
        priority: int,
        timeout_us: int,
        correlation_id: int | str,
        flags: int,
        request_id: str,
    ) -> InferRequest:
        return shared_request(
            model_name,
            signature,
            received_ns,
            rows=rows,
            priority=priority,
            timeout_us=timeout_us,
            version=version,
            correlation_id=correlation_id,
            flags=flags,
            request_id=request_id,
        )

    if item.correlation_ids:  # a model with sequences adds inputs to each
        return [make(*each) for each in details]
    requests = {each: make(*each) for each in set(details)}
    return [requests[each] for each in details]
