# SPDX-License-Identifier: Apache-2.0
"""Reads requests and writes responses that differ from earlier ones only in the bytes of tensors.

The messages are framed for gRPC. The bytes are those of `kserve_pb` and `kserve_pb_response`.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING

from pytriton.base.messages import InferResponse
from pytriton.protocol.columns import blank_tensors, structure_of
from pytriton.protocol.grpc.messages import message_prefix
from pytriton.protocol.kserve_pb_response import encode_infer_response, encode_length, message_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import ParameterValue
    from pytriton.protocol.columns import BatchColumn

Layout = tuple[bytes, ...]  # what comes before each tensor

_RAW_TAG = b"\x3a"  # of raw tensors in a request
_first = itemgetter(0)


def layout_of(message: bytes, raw: Sequence[Buffer]) -> Layout | None:
    """Returns the layout of a ModelInferRequest that ends with its raw tensors; else None."""
    heads = [_RAW_TAG + encode_length(len(data)) for data in raw]
    raw_bytes = sum(map(len, heads)) + message_size(raw)
    start = len(message) - raw_bytes
    if not raw or message[start:] != b"".join(chain.from_iterable(zip(heads, raw, strict=True))):
        return None
    return (message_prefix(len(message)) + message[:start] + heads[0], *heads[1:])


class PbRequestPattern:
    """Reads the tensors of framed requests with the same layout and the same sizes."""

    __slots__ = ("_layout", "_unpack", "size")

    def __init__(self, layout: Layout, sizes: Sequence[int]) -> None:
        parts = zip(layout, sizes, strict=True)
        pattern = struct.Struct("".join(f"{len(fixed)}s{size}s" for fixed, size in parts))
        self.size = pattern.size
        self._layout = layout
        self._unpack = pattern.unpack

    def read(self, framed: bytes) -> tuple[bytes, ...] | None:
        """Returns the tensors of a request of the right size; None if it has another layout."""
        values = self._unpack(framed)
        return values[1::2] if values[::2] == self._layout else None


class PbResponsePattern:
    """Writes framed responses with the same outputs.

    Args:
        model_name: The name of the model.
        model_version: Its version.
        rows: The batch dimension of each response; None if the model has none.
        columns: The outputs of a batch.
        parameters: The parameters of each response.
    """

    __slots__ = ("_layout", "_rows", "_splits", "size", "structure")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[BatchColumn],
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        tensors = blank_tensors(columns, rows)
        response = InferResponse(model_name, model_version, "", tensors, parameters)
        parts = encode_infer_response(response)
        size = message_size(parts)
        self.size = len(message_prefix(size)) + size  # of a framed message
        start = len(parts) - 2 * len(tensors)
        parts[: start + 1] = [b"".join([message_prefix(size), *parts[: start + 1]])]
        self._layout = [bytes(head) for head in parts[::2]]
        self._splits = [struct.Struct(f"{len(tensor.data)}s") for tensor in tensors]

    def encode(
        self, columns: Sequence[BatchColumn], row: int, count: int
    ) -> Iterator[tuple[bytes, ...]]:
        """Returns the parts of `count` framed messages whose rows begin at `row`."""
        end = row + count * self._rows
        parts = []
        for fixed, split, column in zip(self._layout, self._splits, columns, strict=True):
            data = column.data[row * column.row_bytes : end * column.row_bytes]
            pieces = map(_first, split.iter_unpack(data)) if split.size else repeat(b"", count)
            parts += [repeat(fixed), pieces]
        return zip(*parts, strict=False)
