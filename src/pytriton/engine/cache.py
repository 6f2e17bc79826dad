# SPDX-License-Identifier: Apache-2.0
"""The response cache: the most recently used responses of all models, bounded by bytes.

It compares requests and keeps bytes; when to ask it and what to count is the engine's matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from pytriton.messages import InferRequest, InferTensor, ParameterValue

# Up to this size a tensor's bytes are in the key and are compared as they are; beyond it, their
# SHA-256 is. That is the fastest cryptographic digest of hashlib where the processor helps with it
# (1.6 GB/s measured, BLAKE2b 0.6), yet takes twice as long as a copy of 512 bytes.
EXACT_BYTES = 512

# What Python's objects take beside the bytes they hold; a test measures it.
_ENTRY_BYTES = 400
_OUTPUT_BYTES = 200
_DIMENSION_BYTES = 40

# MessagePack because it tells apart whatever a model can: 1, 1.0 and True, or a text and its bytes.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class CachedResponse(msgspec.Struct, frozen=True):
    """What is kept of a response; the tensors own their bytes, and all hits share them."""

    outputs: tuple[InferTensor, ...]
    parameters: dict[str, ParameterValue] | None
    cost_bytes: int


def cache_key(request: InferRequest, version: int, load_id: int = 0) -> bytes:
    """The key of a request.

    Two requests share a response only where no model could tell them apart. So not just the bytes
    of the inputs count but also their shapes, the requested outputs (the response has no others,
    and a model may compute no others) and the parameters. The id of the request does not.

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
        (request.model_name, version, load_id, request.outputs, request.parameters, inputs)
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
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()

    def lookup(self, key: bytes) -> CachedResponse | None:
        """The response to an equal request; None where the cache has none."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry

    def insert(
        self,
        key: bytes,
        outputs: Sequence[InferTensor],
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> bool:
        """Keep a copy of a response; False where it alone would exceed the limit."""
        cost_bytes = _cost_bytes(key, outputs, parameters)
        if cost_bytes > self.byte_limit:
            return False
        entries = self._entries
        if key in entries:
            self.byte_size -= entries.pop(key).cost_bytes
        while self.byte_size + cost_bytes > self.byte_limit:
            _, evicted = entries.popitem(last=False)
            self.byte_size -= evicted.cost_bytes
            self.evictions += 1
        owned = tuple([InferTensor(t.name, t.dtype, t.shape, bytes(t.data)) for t in outputs])
        entries[key] = CachedResponse(owned, dict(parameters) if parameters else None, cost_bytes)
        self.byte_size += cost_bytes
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


def _cost_bytes(
    key: bytes, outputs: Sequence[InferTensor], parameters: Mapping[str, ParameterValue] | None
) -> int:
    """The memory that an entry takes, rather more than less."""
    cost = _ENTRY_BYTES + len(key) * 3 // 2  # the encoder leaves a third of its buffer unused
    for tensor in outputs:
        data = tensor.data
        cost += data.nbytes if type(data) is memoryview else len(data)
        cost += _OUTPUT_BYTES + len(tensor.name) + _DIMENSION_BYTES * len(tensor.shape)
    if parameters:
        cost += _ENTRY_BYTES + _OUTPUT_BYTES * len(parameters) + len(repr(parameters))
    return cost
