# SPDX-License-Identifier: Apache-2.0
"""One model's use of the response cache: lookups before queueing, inserts after the response."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from pytriton.base.messages import InferResponse, InferTensor
from pytriton.serving.engine.cache_key import CacheKeys, cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Outcome, RunningBatch
    from pytriton.runtime.executor.columns import Run
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.cache import CachedResponse, ResponseCache
    from pytriton.serving.engine.stats import ModelStatistics

# Fewer responses than this are stored one by one.
_FEW = 4

_load_ids = itertools.count()  # so that a reloaded model does not use responses of the old load


class AnswerCache:
    """Looks up the requests of a model, stores its responses, and counts hits and misses."""

    def __init__(self, cache: ResponseCache, spec: ModelSpec, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._spec = spec
        self._statistics = statistics
        self._keys = CacheKeys(spec, next(_load_ids))

    def answer(self, inference: Inference) -> InferResponse | None:
        """Returns the cached response to an equal request.

        If there is none, returns None and sets the key under which `store` keeps the response.
        """
        started_ns = time.monotonic_ns()
        key = self._keys.key(inference.request)
        cached = self._cache.lookup(key)
        ended_ns = time.monotonic_ns()
        if cached is None:
            inference.cache_key = key
            inference.cache_ns = ended_ns - started_ns
            return None
        return self._response(inference, cached, ended_ns - started_ns, ended_ns)

    def answer_members(
        self, members: Sequence[Inference]
    ) -> tuple[Sequence[Inference], list[tuple[Inference, InferResponse]]]:
        """Returns the members of a chunk that missed, and those that hit with their responses.

        Args:
            members: All members of the chunk.
        """
        started_ns = time.monotonic_ns()
        keys = self._keys.member_keys(members)
        found = self._cache.lookup_all(keys)
        ended_ns = time.monotonic_ns()
        lookup_ns = (ended_ns - started_ns) // len(members)
        for member, key in zip(members, keys, strict=True):
            member.cache_key = key
            member.cache_ns = lookup_ns
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
            inference.request.id,
            list(cached.outputs),
            cached.parameters,
        )

    def store(self, batch: RunningBatch, outcomes: list[Outcome]) -> None:
        """Store responses. Called after they were delivered, so no client waits for this."""
        started_ns = time.monotonic_ns()
        misses_ns = count = 0
        for outcome in outcomes:
            inference = batch.inferences[outcome.position]
            response = outcome.response
            if inference.cache_key is not None and response is not None:
                self._cache.insert(inference.cache_key, response.outputs, response.parameters)
                misses_ns += inference.cache_ns
                count += 1
        for run in batch.answered:
            members = batch.inferences[run.position : run.position + run.count]
            self._store_run(run, members)
            misses_ns += sum([member.cache_ns for member in members])
            count += len(members)
        misses_ns += time.monotonic_ns() - started_ns
        self._statistics.record_cache_misses(count, misses_ns)

    def _store_run(self, run: Run, members: Sequence[Inference]) -> None:
        """Store the responses of neighbours, which are rows of the batch's outputs."""
        keys = [member.cache_key for member in members]
        is_batched = self._spec.max_batch_size > 0
        starts = run.chunk.row_starts
        if type(starts) is range and len(keys) >= _FEW:  # all have the same number of rows
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
            outputs = [
                InferTensor(
                    output.name,
                    output.dtype,
                    (end - row, *output.shape) if is_batched else output.shape,
                    output.data[row * output.row_bytes : end * output.row_bytes],
                )
                for output in run.outputs
            ]
            self._cache.insert(key, outputs)
            row = end
