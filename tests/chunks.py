# SPDX-License-Identifier: Apache-2.0
"""Chunks of both kinds, for tests that submit members themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytriton.runtime.executor.columns import Chunk, ChunkSignature, ChunkSink

Buffer = bytes | bytearray | memoryview


class _GivenChunk(Chunk, eq=False):
    columns: Sequence[Any] = ()

    @classmethod
    def of(
        cls,
        signature: ChunkSignature,
        sink: ChunkSink,
        columns: Sequence[Any],
        row_starts: Sequence[int],
    ) -> Any:
        """Returns a chunk that was not submitted yet."""
        return cls(signature, sink, row_starts, columns=columns)


class JoinedChunk(_GivenChunk, eq=False):
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
        return [self.columns[column][starts[first] * row_bytes : starts[end] * row_bytes]]


class PiecesChunk(_GivenChunk, eq=False):
    """A chunk whose columns are lists with a buffer for each member, as requests of clients come.

    Args:
        signature: What its requests have in common.
        sink: Receives the answers.
        columns: For each input of the signature, the bytes of each member.
        row_starts: See `JoinedChunk`.
    """

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        """See `Chunk`."""
        return self.columns[column][first:end]
