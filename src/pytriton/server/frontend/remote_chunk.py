# SPDX-License-Identifier: Apache-2.0
"""The core's side of chunks: small requests of a front end, and their answers."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from pytriton.dtypes import BY_NUMBER
from pytriton.executor.columns import (
    InputColumn,
    JoinedChunk,
    Signature,
    make_members,
    shared_request,
)
from pytriton.server.frontend.model_records import as_batch_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.engine.served_model import ServedModel
    from pytriton.errors import ServerError
    from pytriton.executor.columns import Chunk, OutputColumn
    from pytriton.executor.inference import Inference
    from pytriton.messages import InferRequest, InferResponse
    from pytriton.server.frontend.session import FrontEndSession
    from pytriton.transport.channel import Received
    from pytriton.transport.frontend_frames import ChunkItem, DefineSignature


def read_signature(frame: DefineSignature) -> Signature:
    """Returns the signature that a front end has defined."""
    inputs = [
        InputColumn(column.name, BY_NUMBER[column.dtype], column.shape, column.row_bytes)
        for column in frame.inputs
    ]
    return Signature(tuple(inputs), frame.outputs, as_batch_key(frame.batch_key))


class RemoteChunk:
    """One chunk of a front end; sends the answers of its members."""

    __slots__ = ("_call", "_is_ordered", "_left", "_members", "_session")

    def __init__(self, session: FrontEndSession, call: int) -> None:
        self._session = session
        self._call = call
        self._members: list[Inference] = []
        self._left = 0
        self._is_ordered = False

    def submit(
        self, received: Received, item: ChunkItem, signature: Signature, model: ServedModel
    ) -> None:
        """Queue all requests of the chunk."""
        rows = item.rows
        row_starts: Sequence[int] = range(item.count + 1)
        if rows:
            row_starts = list(itertools.accumulate(rows, initial=0))
        columns = [received.column(ref) for ref in item.columns]
        chunk = JoinedChunk(signature, self, columns, row_starts)
        requests = _read_requests(item, signature, model.spec.name)
        self._members = members = make_members(chunk, model, requests)
        self._left = item.count
        self._is_ordered = model.spec.is_ordered
        model.submit_chunk(members, time.monotonic_ns())

    def cancel(self, index: int) -> None:
        """Cancel one request."""
        self._members[index].cancel()

    def cancel_all(self) -> None:
        """Cancel all requests: the front end has ended."""
        for member in self._members:
            member.cancel()

    # Answers

    def on_rows(
        self, chunk: Chunk, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Send the answers of neighbours."""
        starts = chunk.row_starts
        rows = starts[end] - starts[first]
        outbox = self._session.outbox
        if self._is_ordered:
            outbox.flush_items()  # a front end passes on the rows of a message first
        outbox.add_rows(self._call, first, end, outputs, row, rows)
        self._count(end - first)

    def on_outcome(
        self,
        chunk: Chunk,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Send the end of one request."""
        outbox = self._session.outbox
        if error is not None:
            outbox.add_error(self._call, error, is_refused=is_refused, index=index)
        else:
            outbox.add_response(self._call, response, is_final=True, index=index)
        self._count(1)

    def _count(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._members = []  # they refer to this object
            self._session.end_chunk(self._call)


def _read_requests(
    item: ChunkItem, signature: Signature, model_name: str
) -> InferRequest | list[InferRequest]:
    """Returns the record of all members, or that of each; equal members share one."""

    def read(rows: int = 1, priority: int = 0, timeout_us: int = 0) -> InferRequest:
        request = shared_request(
            model_name,
            signature,
            item.received_ns,
            rows=rows,
            priority=priority,
            timeout_us=timeout_us,
        )
        request.model_version = item.model_version
        return request

    if not item.rows and not item.priorities:
        return read()
    ones, zeros = [1] * item.count, [0] * item.count
    details = list(
        zip(item.rows or ones, item.priorities or zeros, item.timeouts_us or zeros, strict=True)
    )
    requests = {each: read(*each) for each in set(details)}
    return [requests[each] for each in details]
