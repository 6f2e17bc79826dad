# SPDX-License-Identifier: Apache-2.0
"""Reads the responses of a message, whichever form they have."""

from __future__ import annotations

from pytriton.runtime.transport.frames import ResponseItem, ResponsesFrame
from pytriton.runtime.transport.refs import TensorRef


def with_items_only(received):
    """The message, with an item in place of each row."""
    frame = received.frame
    if isinstance(frame, ResponsesFrame) and frame.rows is not None:
        frame.items[:0] = _as_items(frame.rows)
        frame.rows = None
    return received


def _as_items(rows):
    count = sum(burst.count for burst in rows.bursts)
    columns = [_cut(ref, count) for ref in rows.outputs]
    return [
        ResponseItem(burst.batch, burst.position, [next(it) for it in columns], is_final=False)
        for burst in rows.bursts
        for _ in range(burst.count)
    ]


def _cut(ref, count):
    at = ref.offset
    for size in ref.pieces or [ref.size // count] * count:
        yield TensorRef(ref.name, ref.dtype, ref.shape, at, size, ref.block)
        at += size
