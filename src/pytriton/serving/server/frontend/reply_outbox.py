# SPDX-License-Identifier: Apache-2.0
"""Gathers the replies to a front end and sends those of one loop iteration together."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

from pytriton.base.columns import Column
from pytriton.base.errors import ServerError, error_for_clients, sendable_text
from pytriton.runtime.transport.frontend_frames import Replies, ReplyItem, RowsItem
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import (
        InferResponse,
        InferTensor,
        OutputBurst,
        RequestCost,
        ResponseBurst,
    )
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.loop_channel import LoopChannel

logger = logging.getLogger(__name__)

# A message is sent before the end of the iteration if it has this number of replies or of bytes.
_MAX_ITEMS = 128
_MAX_BYTES = 48 << 10


class ReplyOutbox:
    """The replies that are sent at the end of this iteration of the event loop."""

    def __init__(self, channel: LoopChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._items: list[ReplyItem] = []
        self._rows: list[RowsItem] = []
        self._payload: Payload | None = None
        self._bytes = 0
        self._is_flush_due = False
        self._is_open = True

    def add_response(
        self,
        call: int,
        response: InferResponse | None,
        *,
        is_final: bool,
        index: int = -1,
        cost: RequestCost | None = None,
        at_once: bool = False,
    ) -> int:
        """Add a response; returns the size of its tensors. `at_once`: it waits for no others.

        Raises:
            UnavailableError: There is no memory for its tensors.
        """
        if not self._is_open:
            return 0
        if response is None:
            self._add(ReplyItem(call, None, is_final, index=index, cost=cost))
            return 0
        refs = [self._place(each, each.data) for each in response.outputs]
        parameters = response.parameters
        item = ReplyItem(call, refs, is_final, parameters=parameters, index=index, cost=cost)
        if at_once:
            self._items.append(item)
            self.flush()
        else:
            self._add(item)
        return sum(ref.size for ref in refs)

    def add_burst(self, call: int, burst: ResponseBurst) -> None:
        """Add many responses of a decoupled model.

        Raises:
            UnavailableError: There is no memory for their tensors.
        """
        if not self._is_open:
            return
        refs = [self._place(each, each.data, each.sizes) for each in burst.outputs]
        self._add(ReplyItem(call, refs, is_final=False, burst=burst.count))

    def add_error(
        self,
        call: int,
        error: ServerError,
        *,
        is_final: bool = True,
        is_refused: bool = False,
        index: int = -1,
        cost: RequestCost | None = None,
    ) -> None:
        text, code = sendable_text(error.message), int(error.code)
        item = ReplyItem(call, None, is_final, text, code, is_refused=is_refused, index=index)
        item.cost = cost
        item.retry_after_s = error.retry_after_s
        self._add(item)

    def add_outdated(self, call: int) -> None:
        """Add a demand to look up the model of a request again."""
        self._add(ReplyItem(call, is_outdated=True))

    def add_rows(
        self,
        call: int,
        first: int,
        end: int,
        outputs: Sequence[Column],
        row: int,
        rows: int,
        cost: RequestCost | None = None,
    ) -> None:
        """Add the answers of neighbours of a chunk, whose `rows` rows begin at `row`.

        Raises:
            UnavailableError: There is no memory for the rows.
        """
        if not self._is_open:
            return
        refs = []
        for column in outputs:
            ends = column.offsets[row : row + rows + 1]
            sizes = [end - start for start, end in pairwise(ends)]
            refs.append(self._place(column, column.part(row, row + rows), sizes))
        self._rows.append(RowsItem(call, first, end, refs, cost))
        self._flush_when_due()

    def _place(
        self, tensor: InferTensor | OutputBurst | Column, data: Buffer, sizes: Sequence[int] = ()
    ) -> TensorRef:
        """Add the bytes of a tensor to the next message."""
        if self._payload is None:
            self._payload = self._channel.payload()
        size = len(data)
        block, offset = self._payload.add((data,), size)
        if not block:
            self._bytes += size
        number = tensor.dtype.number
        return TensorRef(tensor.name, number, tensor.shape, offset, size, block, list(sizes))

    def flush(self) -> None:
        """Send the gathered replies now."""
        self._is_flush_due = False
        # A flush may be due for replies that were sent by a full message meanwhile.
        if not (self._items or self._rows) or not self._is_open:
            return
        items, self._items = self._items, []
        rows, self._rows = self._rows, []
        payload, self._payload = self._payload, None
        self._bytes = 0
        try:
            self._channel.send(Replies(items, rows), payload)
        except Exception as error:  # noqa: BLE001  for example no memory for a long message
            self._send_failures(items, rows, error)

    def flush_items(self) -> None:
        """Send the gathered replies now if some are not rows."""
        if self._items:
            self.flush()

    def _send_failures(
        self, items: list[ReplyItem], rows: list[RowsItem], error: Exception
    ) -> None:
        """End the requests of a message that could not be sent."""
        failure = error_for_clients(error, "it sent replies to a front end")
        text, code = sendable_text(failure.message), int(failure.code)
        # The clients get an error in place of the responses that could not be sent.
        failures = [
            item
            if item.is_outdated
            else ReplyItem(item.call, None, error=text, error_code=code, index=item.index)
            for item in items
        ]
        failures += [
            ReplyItem(item.call, None, error=text, error_code=code, index=index)
            for item in rows
            for index in range(item.first, item.end)
        ]
        for start in range(0, len(failures), _MAX_ITEMS):
            self._channel.send(Replies(failures[start : start + _MAX_ITEMS]))

    def close(self) -> None:
        """Drop all replies: the front end has ended."""
        self._is_open = False
        self._items.clear()
        self._rows.clear()
        self._payload = None

    def _add(self, item: ReplyItem) -> None:
        if not self._is_open:
            return
        self._items.append(item)
        self._flush_when_due()

    def _flush_when_due(self) -> None:
        if len(self._items) + len(self._rows) >= _MAX_ITEMS or self._bytes >= _MAX_BYTES:
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)
