# SPDX-License-Identifier: Apache-2.0
"""One model's use of the response cache: lookups before queueing, inserts after the response.

The keys are made here, too: requests that a model could distinguish have different ones.
"""

from __future__ import annotations

import itertools
import time
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.columns import cut
from pytriton.base.messages import InferRequest, InferResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.columns import Chunk, ChunkRun
    from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
    from pytriton.serving.engine.cache import CachedResponse, ResponseStore
    from pytriton.serving.engine.stats import ModelStatistics

# The key holds the bytes of tensors up to this size, and the SHA-256 digest of larger ones. SHA-256
# is the fastest cryptographic digest of hashlib on processors with instructions for it (1.6 GB/s
# measured, BLAKE2b 0.6), but takes twice as long as a copy of 512 bytes.
EXACT_BYTES = 512

# The number of shapes whose keys are quick; clients choose the shapes of some models.
_MAX_BEGINNINGS = 1024

# MessagePack, because it distinguishes all that a model can: 1, 1.0 and True; text and bytes.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


# Fewer responses than this are stored one by one.
_FEW = 4

_load_ids = itertools.count()  # so that a reloaded model does not use responses of the old load


class AnswerCache:
    """Looks up the requests of a model, stores its responses, and counts hits and misses."""

    def __init__(self, cache: ResponseStore, spec: ModelSpec, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._spec = spec
        self._statistics = statistics
        self._keys = CacheKeys(spec, next(_load_ids))

    def answer(self, inference: Inference) -> InferResponse | None:
        """Returns the cached response to an equal request.

        If there is none, returns None and sets the key under which `store` keeps the response.
        """
        if inference.request.device is not None:  # the server never sees its tensors
            return None
        started_ns = time.monotonic_ns()
        key = self._keys.key(inference.request)
        cached = self._cache.lookup(key)
        ended_ns = time.monotonic_ns()
        if cached is None:
            inference.cache_key = key
            inference.cache_ns = ended_ns - started_ns
            # The model may have got its cache after somebody asked for outputs in GPU memory.
            inference.request.device_wish = None
            return None
        return self._response(inference, cached, ended_ns - started_ns, ended_ns)

    def answer_members(
        self, members: Sequence[Inference]
    ) -> tuple[Sequence[Inference], list[tuple[Inference, InferResponse]]]:
        """Returns the members of a chunk that missed, and those that hit with their responses."""
        started_ns = time.monotonic_ns()
        keys = self._keys.member_keys(members)
        found = self._cache.lookup_all(keys)
        ended_ns = time.monotonic_ns()
        lookup_ns = (ended_ns - started_ns) // len(members)
        chunk = members[0].chunk
        assert chunk is not None
        chunk.cache_keys, chunk.cache_ns = _by_index(keys, members), lookup_ns
        if found.count(None) == len(members):
            return members, []
        pairs = list(zip(members, found, strict=True))
        misses = [member for member, cached in pairs if cached is None]
        hits = [
            (member, self._response(member, cached, lookup_ns, ended_ns))
            for member, cached in pairs
            if cached is not None
        ]
        return misses, hits

    def _response(
        self, inference: Inference, cached: CachedResponse, lookup_ns: int, now_ns: int
    ) -> InferResponse:
        """Count a hit; returns its response."""
        self._statistics.record_cache_hit(
            lookup_ns, now_ns - inference.request.received_ns, time.time_ns() // 1_000_000
        )
        return InferResponse(
            self._spec.name,
            str(self._spec.version),
            inference.request.fields.id,
            list(cached.outputs),
            cached.parameters,
        )

    def store(self, batch: RunningBatch, outcomes: list[Outcome]) -> None:
        """Store responses. Called after they were delivered, so no client waits for this."""
        started_ns = time.monotonic_ns()
        misses_ns = count = 0
        for outcome in outcomes:
            inference = batch.inferences[outcome.position]
            chunk, response = inference.chunk, outcome.response
            key, lookup_ns = inference.cache_key, inference.cache_ns
            if key is None and chunk is not None:
                key, lookup_ns = chunk.cache_keys[inference.index], chunk.cache_ns
            if key is not None and response is not None:
                self._cache.insert(key, response.outputs, response.parameters)
                misses_ns += lookup_ns
                count += 1
        for run in batch.answered:
            self._store_run(run, batch.inferences[run.position : run.position + run.count])
            misses_ns += run.count * run.chunk.cache_ns
            count += run.count
        misses_ns += time.monotonic_ns() - started_ns
        self._statistics.record_cache_misses(count, misses_ns)

    def _store_run(self, run: ChunkRun, members: Sequence[Inference]) -> None:
        """Store the responses of neighbours, which are rows of the batch's outputs."""
        keys = run.chunk.cache_keys[run.first : run.end]
        is_batched = self._spec.max_batch_size > 0
        starts = run.chunk.row_starts
        has_strings = any(output.offsets for output in run.outputs)
        # All have the same number of rows, and of bytes.
        if type(starts) is range and len(keys) >= _FEW and not has_strings:
            layout = []
            columns = []
            for output in run.outputs:
                row_bytes = output.row_bytes
                shape = (starts.step, *output.shape) if is_batched else output.shape
                layout.append((output.name, output.dtype, shape, starts.step * row_bytes))
                data = output.data[run.row * row_bytes : (run.row + run.rows) * row_bytes]
                columns.append(cut(data, starts.step * row_bytes, len(keys)))
            self._cache.insert_alike(keys, tuple(layout), columns)
            return
        row = run.row
        for key, member in zip(keys, members, strict=True):
            end = row + member.request.rows
            outputs = [output.tensor(row, end, is_batched=is_batched) for output in run.outputs]
            self._cache.insert(key, outputs)
            row = end


class CacheKeys:
    """Makes the keys of validated requests of one loaded model.

    The key of a plain request is a beginning, which is the same for all requests of its shape, and
    the bytes of its inputs: 0.5 us instead of the 1.5 us of `cache_key`.
    `load_id` is another number for each load of any model.
    """

    __slots__ = ("_beginnings", "_has_plain_inputs", "_load_id", "_names", "_spec")

    def __init__(self, spec: ModelSpec, load_id: int) -> None:
        self._spec = spec
        self._load_id = load_id
        # If none is optional or ragged and none has strings, then the number of rows and the batch
        # key say how many bytes each input has, and nothing has to separate them.
        self._has_plain_inputs = bool(spec.inputs) and all(
            each.dtype.itemsize and name in spec.required_inputs and not each.is_ragged
            for name, each in spec.inputs.items()
        )
        self._names = tuple(spec.inputs)
        self._beginnings: dict[Any, bytes] = {}  # empty if an input is too large for the key

    def key(self, request: InferRequest) -> bytes:
        if (
            self._has_plain_inputs
            and not request.fields.parameters
            and not request.fields.flags
            and not request.fields.timeout_us
            and request.fields.correlation_id == 0
        ):
            kind = (request.rows, request.batch_key, request.outputs)
            beginning = self._beginnings.get(kind)
            if beginning is None:
                sizes = [_size(tensor.data) for tensor in request.inputs.values()]
                beginning = self._begin(kind, sizes)
            if beginning:
                inputs = request.inputs
                key = beginning
                for name in self._names:  # in the model's order, not in the client's
                    key += inputs[name].data
                return key
        return cache_key(request, self._spec.version, self._load_id)

    def member_keys(self, members: Sequence[Inference]) -> list[bytes]:
        """Returns the keys of all members of a chunk: those that they would have alone."""
        chunk, request = members[0].chunk, members[0].request
        assert chunk is not None
        requests = {member.request for member in members}  # usually all members share one
        if (
            self._has_plain_inputs
            and type(chunk.row_starts) is range  # all have the same number of rows
            and len(members) == len(chunk.row_starts) - 1  # none was refused
            and not any(map(_has_key_fields, requests))
        ):
            inputs = chunk.signature.inputs
            kind = (request.rows, request.batch_key, request.outputs)
            beginning = self._beginnings.get(kind)
            if beginning is None:
                beginning = self._begin(kind, [request.rows * each.row_bytes for each in inputs])
            if beginning:
                count = len(members)
                columns = [
                    _pieces(chunk, index, count, request.rows) for index in range(len(inputs))
                ]
                return list(map(b"".join, zip(repeat(beginning), *columns)))
        return [self.key(chunk.request_of(member.index)) for member in members]

    def _begin(self, kind: tuple[Any, ...], sizes: Iterable[int]) -> bytes:
        is_small = all(size <= EXACT_BYTES for size in sizes)
        if len(self._beginnings) == _MAX_BEGINNINGS:
            self._beginnings.clear()
        # An array of four elements: never the beginning of what `cache_key` returns.
        beginning = _encode((self._load_id, *kind)) if is_small else b""
        self._beginnings[kind] = beginning
        return beginning


def _by_index(keys: list[bytes], members: Sequence[Inference]) -> list[bytes]:
    """Returns keys by the indices of members, some of which may have been refused."""
    chunk = members[0].chunk
    assert chunk is not None
    count = len(chunk.row_starts) - 1
    if len(keys) == count:
        return keys
    placed = [b""] * count
    for member, key in zip(members, keys, strict=True):
        placed[member.index] = key
    return placed


def cache_key(request: InferRequest, version: int, load_id: int = 0) -> bytes:
    """Returns the cache key of any request.

    Two requests share a response only if no model could distinguish them. So the key includes the
    bytes and shapes of the inputs, the requested outputs (the response has only these, and a model
    may compute only these), the parameters, the correlation id, the sequence flags and the timeout.
    It does not include the id of the request. `load_id` changes whenever the model is loaded, since
    its responses may change, too.
    """
    inputs = {}
    for name, tensor in request.inputs.items():
        data = tensor.data
        size = _size(data)
        # With the size, a digest never equals a small tensor that holds the same bytes.
        content = data if size <= EXACT_BYTES else sha256(data).digest()
        inputs[name] = (tensor.dtype.number, tensor.shape, size, content)
    return _encode(
        (
            request.model_name,
            version,
            load_id,
            request.outputs,
            request.fields.parameters,
            request.fields.correlation_id,
            request.fields.flags,
            request.fields.timeout_us,
            inputs,
        )
    )


def _has_key_fields(request: InferRequest) -> bool:
    """Returns whether a key holds more of a request than its inputs and outputs."""
    return bool(
        request.fields.timeout_us
        or request.fields.parameters
        or request.fields.correlation_id
        or request.fields.flags
    )


def _size(data: Any) -> int:
    return data.nbytes if type(data) is memoryview else len(data)


def _pieces(chunk: Chunk, column: int, count: int, rows: int) -> Iterable[Any]:
    """Returns the bytes of an input for each member of a chunk; each has this number of rows."""
    pieces = chunk.pieces(column, 0, count)
    if len(pieces) == count:
        return pieces
    return cut(b"".join(pieces), rows * chunk.signature.inputs[column].row_bytes, count)
