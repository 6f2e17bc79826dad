# SPDX-License-Identifier: Apache-2.0
"""Chunks of both kinds, for tests that submit members themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytriton.base.messages import ResponseSink
from pytriton.runtime.executor.columns import ChunkSignature, ChunkSink, MemberSink
from pytriton.runtime.executor.inference import Inference

Buffer = bytes | bytearray | memoryview


class _GivenChunk:
    def __init__(
        self,
        signature: ChunkSignature,
        sink: ChunkSink,
        columns: Sequence[Any],
        row_starts: Sequence[int],
    ) -> None:
        self.signature = signature
        self.sink = sink
        self._columns = columns
        self.row_starts = row_starts
        self.members: list[Inference] = []
        self.trace = None
        self.cache_keys: Sequence[bytes] = ()
        self.cache_ns = 0

    def member_sink(self, index: int) -> ResponseSink:
        """See `Chunk`."""
        return MemberSink(self, index)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.row_starts) - 1} requests>"


class JoinedChunk(_GivenChunk):
    """A chunk whose columns are one buffer each, as in a message of another process.

    Args:
        signature: What its requests have in common.
        sink: Receives the answers.
        columns: The bytes of each input of the signature, all members joined.
        row_starts: See `Chunk`. For members of one row each, and for models without a batch
            dimension, it is `range(count + 1)`.
    """

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        """See `Chunk`."""
        starts = self.row_starts
        row_bytes = self.signature.inputs[column].row_bytes
        return [self._columns[column][starts[first] * row_bytes : starts[end] * row_bytes]]


class PiecesChunk(_GivenChunk):
    """A chunk whose columns are lists with a buffer for each member, as requests of clients come.

    Args:
        signature: What its requests have in common.
        sink: Receives the answers.
        columns: For each input of the signature, the bytes of each member.
        row_starts: See `JoinedChunk`.
    """

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        """See `Chunk`."""
        return self._columns[column][first:end]
