# SPDX-License-Identifier: Apache-2.0
"""Small responses that are alike, as columns: they wait here until they are sent together.

One record with the names, types and shapes of the outputs stands for all of them, and their bytes
are one buffer for each output. So a response of a stream costs neither a record nor a tensor.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from pytriton.base.dtypes import array_to_bytes_elements, encode_bytes
from pytriton.runtime.transport.frames import BurstRef, ResponseItem, ResponseRows
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.transport.payload import Payload

# The outputs of a larger response are tensors of their own.
SMALL_RESPONSE_BYTES = 4 << 10

# The name, the number of the datatype and the shape of each output.
Structure = tuple[tuple[str, int, tuple[int, ...]], ...]


class HeldRows:
    """Responses of one structure; those to a request keep their order and become a burst."""

    __slots__ = ("_by_request", "count", "size", "structure")

    def __init__(self) -> None:
        self.structure: Structure = ()
        self.count = 0
        self.size = 0  # in bytes
        self._by_request: dict[tuple[int, int], list[Sequence[bytes]]] = {}

    def add(
        self, request: tuple[int, int], structure: Structure, data: Sequence[bytes], size: int
    ) -> bool:
        """Add a response of `size` bytes to a request, which is its batch and its position there.

        Returns False if its structure is another one than that of those that wait.
        """
        if structure is not self.structure:
            if self.count and structure != self.structure:
                return False
            self.structure = structure
        self.count += 1
        self.size += size
        rows = self._by_request.get(request)
        if rows is None:
            self._by_request[request] = [data]
        else:
            rows.append(data)
        return True

    def record(self, payload: Payload) -> ResponseRows:
        """Add the bytes to a message; returns the record of all responses."""
        bursts = [
            BurstRef(batch, position, len(rows))
            for (batch, position), rows in self._by_request.items()
        ]
        columns = zip(*chain.from_iterable(self._by_request.values()), strict=True)
        outputs = []
        for (name, dtype, shape), column in zip(self.structure, columns, strict=True):
            sizes = list(map(len, column))
            size = sum(sizes)
            block, offset = payload.add((b"".join(column),), size)
            pieces = [] if sizes.count(sizes[0]) == len(sizes) else sizes
            outputs.append(TensorRef(name, dtype, shape, offset, size, block, pieces))
        return ResponseRows(bursts, outputs)

    def items(self, payload: Payload) -> Iterator[ResponseItem]:
        """Add the bytes to a message; yields a record for each response."""
        for (batch, position), rows in self._by_request.items():
            for data in rows:
                yield make_item(payload, batch, position, self.structure, data)


def pack_texts(array: NDArray[Any], room: int) -> bytes | None:
    """Returns the bytes of a BYTES tensor; None if there are more than `room`."""
    if 4 * array.size > room:  # each element begins with its length
        return None
    elements = array_to_bytes_elements(array)
    if 4 * len(elements) + sum(map(len, elements)) > room:
        return None
    return encode_bytes(elements)


def make_item(
    payload: Payload, batch: int, position: int, structure: Structure, data: Sequence[bytes]
) -> ResponseItem:
    """Returns a response on its own, which is not the last one of its request."""
    refs = []
    for (name, dtype, shape), each in zip(structure, data, strict=True):
        size = len(each)
        block, offset = payload.add((each,), size)
        refs.append(TensorRef(name, dtype, shape, offset, size, block))
    return ResponseItem(batch, position, refs, is_final=False)
