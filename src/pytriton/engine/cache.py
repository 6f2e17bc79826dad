# SPDX-License-Identifier: Apache-2.0
"""The response cache: the most recently used responses of all models, bounded by bytes.

It compares requests and stores bytes. The engine decides when to look up and what to count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from pytriton.dtypes import BY_NUMBER
from pytriton.messages import InferRequest, InferTensor, ParameterValue

# The key holds the bytes of tensors up to this size, and the SHA-256 digest of larger ones. SHA-256
# is the fastest cryptographic digest of hashlib on processors with instructions for it (1.6 GB/s
# measured, BLAKE2b 0.6), but takes twice as long as a copy of 512 bytes.
EXACT_BYTES = 512

# The memory overhead of an entry's Python objects; a test measures it.
_ENTRY_BYTES = 250

# MessagePack, because it distinguishes all that a model can: 1, 1.0 and True; text and bytes.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class _StoredTensor(msgspec.Struct, array_like=True, gc=False):
    """An output inside a cache entry, together with its bytes."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    data: memoryview


class _StoredResponse(msgspec.Struct, array_like=True):
    outputs: list[_StoredTensor]
    parameters: dict[str, ParameterValue] | None


_decode = msgspec.msgpack.Decoder(_StoredResponse).decode


class CachedResponse(msgspec.Struct, frozen=True):
    """A response from the cache; all hits share its bytes."""

    outputs: tuple[InferTensor, ...]
    parameters: dict[str, ParameterValue] | None


def cache_key(request: InferRequest, version: int, load_id: int = 0) -> bytes:
    """Returns the cache key of a request.

    Two requests share a response only if no model could distinguish them. So the key includes the
    bytes and shapes of the inputs, the requested outputs (the response has only these, and a model
    may compute only these), the parameters, the correlation id, the sequence flags and the timeout.
    It does not include the id of the request.

    Args:
        request: The request; the order of its inputs does not matter.
        version: The version that serves the request; the request itself may name none.
        load_id: Changes whenever the model is loaded, since its responses may change, too.
    """
    inputs = {}
    for name, tensor in request.inputs.items():
        data = tensor.data
        size = data.nbytes if type(data) is memoryview else len(data)
        # With the size, a digest never equals a small tensor that holds the same bytes.
        content = data if size <= EXACT_BYTES else sha256(data).digest()
        inputs[name] = (tensor.dtype.number, tensor.shape, size, content)
    return _encode(
        (
            request.model_name,
            version,
            load_id,
            request.outputs,
            request.parameters,
            request.correlation_id,
            request.flags,
            request.timeout_us,
            inputs,
        )
    )


class ResponseCache:
    """Responses by key; a new one evicts the least recently used ones.

    Args:
        byte_limit: The memory that all entries may take, with keys and Python's overhead.
    """

    __slots__ = ("_entries", "byte_limit", "byte_size", "evictions", "hits", "misses")

    def __init__(self, byte_limit: int) -> None:
        self.byte_limit = byte_limit
        self.byte_size = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        # Each response is one bytes object: storing and dropping it touches little memory, and
        # touching memory is most of the cost of a miss.
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()

    def lookup(self, key: bytes) -> CachedResponse | None:
        """Returns the response to an equal request; None if the cache has none."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        kept = _decode(entry)
        outputs = [InferTensor(t.name, BY_NUMBER[t.dtype], t.shape, t.data) for t in kept.outputs]
        return CachedResponse(tuple(outputs), kept.parameters)

    def insert(
        self,
        key: bytes,
        outputs: Sequence[InferTensor],
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> bool:
        """Store a copy of a response; returns False if it alone would exceed the limit."""
        entry = _encode(
            ([(t.name, t.dtype.number, t.shape, t.data) for t in outputs], parameters or None)
        )
        cost_bytes = _cost_bytes(key, entry)
        if cost_bytes > self.byte_limit:
            return False
        entries = self._entries
        if key in entries:
            self.byte_size -= _cost_bytes(key, entries.pop(key))
        size = self.byte_size + cost_bytes
        while size > self.byte_limit:
            old_key, old_entry = entries.popitem(last=False)
            size -= _cost_bytes(old_key, old_entry)
            self.evictions += 1
        entries[key] = entry
        self.byte_size = size
        return True

    def clear(self) -> None:
        """Drop all entries and keep the counts."""
        self._entries.clear()
        self.byte_size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return (
            f"<ResponseCache {len(self)} entries, {self.byte_size} of {self.byte_limit} bytes, "
            f"{self.hits} hits, {self.misses} misses, {self.evictions} evictions>"
        )


def _cost_bytes(key: bytes, entry: bytes) -> int:
    """Returns the memory that an entry takes; a third of the encoder's buffers stays unused."""
    return _ENTRY_BYTES + (len(key) + len(entry)) * 3 // 2
