# SPDX-License-Identifier: Apache-2.0
"""The response cache: the most recently used responses of all models, bounded by bytes.

It stores bytes by keys, which `serving.engine.answer_cache` makes and uses.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import msgspec

from pytriton.base.dtypes import BY_NUMBER, DataType
from pytriton.base.messages import InferTensor, ParameterValue

# Of each output of a response: its name, datatype and shape, and the number of its bytes.
Layout = tuple[tuple[str, DataType, tuple[int, ...], int], ...]

# The memory overhead of an entry's Python objects; a test measures it.
_ENTRY_BYTES = 250

_HEAD_SIZE = struct.Struct("<I")
_MAX_ADDED_BYTES = 4096
_MIN_USES = 1024


class _StoredTensor(msgspec.Struct, array_like=True, gc=False):
    """An output in the head of an entry; its bytes come after the head."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    size: int


class _Head(msgspec.Struct, array_like=True):
    outputs: list[_StoredTensor]
    parameters: dict[str, ParameterValue] | None


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(_Head).decode


class CachedResponse(msgspec.Struct, frozen=True):
    """A response from the cache; all hits share its bytes."""

    outputs: tuple[InferTensor, ...]
    parameters: dict[str, ParameterValue] | None


class ResponseStore:
    """Responses by key; a new one evicts the least recently used ones.

    Args:
        byte_limit: The memory that all entries may take, with keys and Python's overhead.
    """

    __slots__ = (
        "_entries", "_later_uses", "_packer", "_uses", "byte_limit", "byte_size", "evictions",
        "hits", "misses",
    )  # fmt: skip

    def __init__(self, byte_limit: int) -> None:
        self.byte_limit = byte_limit
        self.byte_size = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        # Each response is one bytes object: storing and dropping it touches little memory, and
        # touching memory is most of the cost of a miss.
        self._entries: dict[bytes, bytes] = {}
        # The keys in the order of their uses, in which only the last use of a key counts. With an
        # `OrderedDict`, whose nodes are all over the memory, a miss takes 0.2 us more.
        self._uses: deque[bytes] = deque()
        self._later_uses: dict[bytes, int] = {}  # of each key, how many follow its first one
        self._packer = _Packer()

    def lookup(self, key: bytes) -> CachedResponse | None:
        """Returns the response to an equal request; None if the cache has none."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._use_again(key)
        return _unpacked(entry)

    def lookup_all(self, keys: Sequence[bytes]) -> list[CachedResponse | None]:
        """Returns for each key what `lookup` returns."""
        entries = list(map(self._entries.get, keys))
        missing = entries.count(None)
        self.misses += missing
        if missing == len(keys):
            return [None] * missing
        self.hits += len(keys) - missing
        found: list[CachedResponse | None] = []
        for key, entry in zip(keys, entries, strict=True):
            if entry is None:
                found.append(None)
            else:
                self._use_again(key)
                found.append(_unpacked(entry))
        return found

    def insert(
        self,
        key: bytes,
        outputs: Sequence[InferTensor],
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> bool:
        """Store a copy of a response; returns False if it alone would exceed the limit."""
        return self._put(key, self._packer.pack(outputs, parameters))

    def insert_alike(
        self, keys: Sequence[bytes], layout: Layout, columns: Sequence[Iterable[bytes]]
    ) -> None:
        """Store responses that differ only in the bytes of their outputs: 0.3 us for each.

        `columns` has for each output its bytes in each of the responses.
        """
        entries = self._entries
        head = _plain_head(layout)
        new_entries = list(map(b"".join, zip(repeat(head), *columns)))
        cost_bytes = _ENTRY_BYTES + (len(keys[0]) + len(new_entries[0])) * 3 // 2
        if (
            cost_bytes > self.byte_limit
            or len(set(keys)) < len(keys)
            or len(set(map(len, keys))) > 1
            or not entries.keys().isdisjoint(keys)
        ):
            for key, entry in zip(keys, new_entries, strict=True):
                self._put(key, entry)
            return
        entries.update(zip(keys, new_entries, strict=True))
        self._uses.extend(keys)
        self._evict(self.byte_size + cost_bytes * len(keys))

    def _put(self, key: bytes, entry: bytes) -> bool:
        entries, byte_limit = self._entries, self.byte_limit
        # A third of the buffer that an encoder returns stays unused.
        cost_bytes = _ENTRY_BYTES + (len(key) + len(entry)) * 3 // 2
        if cost_bytes > byte_limit:
            return False
        replaced = entries.get(key)
        if replaced is None:
            self._uses.append(key)
        else:
            cost_bytes -= _ENTRY_BYTES + (len(key) + len(replaced)) * 3 // 2
            self._use_again(key)
        entries[key] = entry
        self._evict(self.byte_size + cost_bytes)
        return True

    def _evict(self, size: int) -> None:
        """Drop the least recently used entries until all that are left fit.

        `size` is what all entries cost.
        """
        entries, uses, byte_limit = self._entries, self._uses, self.byte_limit
        later_uses, old_count = self._later_uses, len(entries)
        while size > byte_limit:
            old_key = uses.popleft()
            if later_uses and self._is_used_later(old_key):
                continue
            size -= _ENTRY_BYTES + (len(old_key) + len(entries.pop(old_key))) * 3 // 2
        self.evictions += old_count - len(entries)
        self.byte_size = size

    def _use_again(self, key: bytes) -> None:
        """Make a key that has an entry the last one to be evicted."""
        later_uses = self._later_uses
        later_uses[key] = later_uses.get(key, 0) + 1
        self._uses.append(key)
        if len(self._uses) > 2 * len(self._entries) + _MIN_USES:
            self._drop_earlier_uses()

    def _is_used_later(self, key: bytes) -> bool:
        """Whether the use of a key that was just taken from the queue was not its last one."""
        count = self._later_uses.pop(key, 0)
        if count > 1:
            self._later_uses[key] = count - 1
        return count > 0

    def _drop_earlier_uses(self) -> None:
        """Keep only the last use of each key, so that hits do not fill the memory."""
        last_uses = dict.fromkeys(reversed(self._uses))
        self._uses = deque(reversed(last_uses))
        self._later_uses.clear()

    def check_integrity(self) -> None:
        """Check sizes and the queue of uses, for tests: raises AssertionError with what is broken.

        It takes time for each entry, and changes nothing.
        """
        size = sum(
            _ENTRY_BYTES + (len(key) + len(entry)) * 3 // 2 for key, entry in self._entries.items()
        )
        assert self.byte_size == size, f"{self}: the entries have {size} bytes"
        assert size <= self.byte_limit, f"{self} is too large"
        expected = {key: 1 + self._later_uses.get(key, 0) for key in self._entries}
        assert Counter(self._uses) == expected, f"{self}: the uses are not those of the entries"
        assert self._later_uses.keys() <= self._entries.keys(), f"{self}: uses of dropped entries"

    def clear(self) -> None:
        """Drop all entries and keep the counts."""
        self._entries.clear()
        self._uses.clear()
        self._later_uses.clear()
        self.byte_size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return (
            f"<ResponseCache {len(self)} entries, {self.byte_size} of {self.byte_limit} bytes, "
            f"{self.hits} hits, {self.misses} misses, {self.evictions} evictions>"
        )


class _Packer:
    """Makes the entries of responses: the size of a head, the head, the bytes of the outputs.

    The responses of a model mostly differ in these bytes only, so the head of the last response is
    used again if it fits: 0.55 us instead of 0.8 us with two outputs.
    """

    __slots__ = ("_dtypes", "_entry_size", "_head", "_names", "_shapes")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._dtypes: list[DataType] = []
        self._shapes: list[tuple[int, ...]] = []
        self._head = b""
        self._entry_size = -1  # no entry has it: nothing can be used again

    def pack(
        self, outputs: Sequence[InferTensor], parameters: Mapping[str, ParameterValue] | None
    ) -> bytes:
        """Returns the entry of a response."""
        if len(outputs) == len(self._names) and not parameters:
            entry = self._head
            index = 0  # `zip` and `enumerate` would take 0.1 us more
            for tensor in outputs:
                if (
                    tensor.dtype is not self._dtypes[index]
                    or tensor.shape != self._shapes[index]
                    or tensor.name != self._names[index]
                ):
                    break
                entry += tensor.data
                index += 1  # noqa: SIM113
            else:
                if len(entry) == self._entry_size:
                    return entry
        return self._pack_new(outputs, parameters)

    def _pack_new(
        self, outputs: Sequence[InferTensor], parameters: Mapping[str, ParameterValue] | None
    ) -> bytes:
        layout = tuple((t.name, t.dtype, t.shape, memoryview(t.data).nbytes) for t in outputs)
        head = _head(layout, parameters)
        entry = b"".join([head, *[tensor.data for tensor in outputs]])
        # Adding up large outputs would copy them more than once. The sizes of strings do not follow
        # from their shape.
        is_small = len(entry) <= _MAX_ADDED_BYTES
        if is_small and not parameters and all(t.dtype.itemsize for t in outputs):
            self._names = [tensor.name for tensor in outputs]
            self._dtypes = [tensor.dtype for tensor in outputs]
            self._shapes = [tensor.shape for tensor in outputs]
            self._head = head
            self._entry_size = len(entry)
        return entry


def _head(layout: Layout, parameters: Mapping[str, ParameterValue] | None) -> bytes:
    tensors = [(name, dtype.number, shape, size) for name, dtype, shape, size in layout]
    encoded = _encode((tensors, parameters or None))
    return _HEAD_SIZE.pack(len(encoded)) + encoded


@functools.lru_cache(256)
def _plain_head(layout: Layout) -> bytes:
    return _head(layout, None)


def _unpacked(entry: bytes) -> CachedResponse:
    view = memoryview(entry)
    end = _HEAD_SIZE.size + _HEAD_SIZE.unpack_from(entry)[0]
    head = _decode(view[_HEAD_SIZE.size : end])
    outputs = []
    for tensor in head.outputs:
        start, end = end, end + tensor.size
        data = view[start:end]
        outputs.append(InferTensor(tensor.name, BY_NUMBER[tensor.dtype], tensor.shape, data))
    return CachedResponse(tuple(outputs), head.parameters)
