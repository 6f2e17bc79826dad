# SPDX-License-Identifier: Apache-2.0
"""The response cache: the most recently used responses of all models, bounded by bytes.

It compares requests and keeps bytes; when to ask it and what to count is the engine's matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from pytriton.dtypes import BY_NUMBER
from pytriton.messages import InferRequest, InferTensor, ParameterValue

# Up to this size a tensor's bytes are in the key and are compared as they are; beyond it, their
# SHA-256 is. That is the fastest cryptographic digest of hashlib where the processor helps with it
# (1.6 GB/s measured, BLAKE2b 0.6), yet takes twice as long as a copy of 512 bytes.
EXACT_BYTES = 512

# What Python's objects take beside the bytes they hold; a test measures it.
_ENTRY_BYTES = 250

# MessagePack because it tells apart whatever a model can: 1, 1.0 and True, or a text and its bytes.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class _KeptTensor(msgspec.Struct, array_like=True, gc=False):
    """An output as an entry has it; its bytes are part of the entry."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    data: memoryview


class _KeptResponse(msgspec.Struct, array_like=True):
    outputs: list[_KeptTensor]
    parameters: dict[str, ParameterValue] | None


_decode = msgspec.msgpack.Decoder(_KeptResponse).decode


class CachedResponse(msgspec.Struct, frozen=True):
    """A response that was kept; all hits share its bytes."""

    outputs: tuple[InferTensor, ...]
    parameters: dict[str, ParameterValue] | None


def cache_key(request: InferRequest, version: int, load_id: int = 0) -> bytes:
    """The key of a request.

    Two requests share a response only where no model could tell them apart. So not just the bytes
    of the inputs count but also their shapes, the requested outputs (the response has no others,
    and a model may compute no others), the parameters, and what says which part of which sequence
    the request is and how long it may take. The id of the request does not.

    Args:
        request: The request; the order of its inputs does not matter.
        version: The version that serves it; the request may have left the choice to the server.
        load_id: Changes whenever the model is loaded, since its answers may have changed, too.
    """
    inputs = {}
    for name, tensor in request.inputs.items():
        data = tensor.data
        size = data.nbytes if type(data) is memoryview else len(data)
        # The size keeps a digest from being equal to a small tensor that holds the same bytes.
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
    """Responses by key; a new one takes the place of those that were not used for longest.

    Args:
        byte_limit: What all entries may cost together, keys and Python's overhead included.
    """

    __slots__ = ("_entries", "byte_limit", "byte_size", "evictions", "hits", "misses")

    def __init__(self, byte_limit: int) -> None:
        self.byte_limit = byte_limit
        self.byte_size = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        # One bytes object for each response: keeping and dropping it touches little memory, which
        # is most of what a miss costs.
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()

    def lookup(self, key: bytes) -> CachedResponse | None:
        """The response to an equal request; None where the cache has none."""
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
        """Keep a copy of a response; False where it alone would exceed the limit."""
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
        """Drop all entries; the counts stay."""
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
    """The memory that an entry takes; the encoder leaves a third of its buffers unused."""
    return _ENTRY_BYTES + (len(key) + len(entry)) * 3 // 2
