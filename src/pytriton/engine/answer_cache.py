# SPDX-License-Identifier: Apache-2.0
"""One model's use of the response cache: lookups before queueing, inserts after the response."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from pytriton.engine.cache_key import CacheKeys
from pytriton.messages import InferResponse

if TYPE_CHECKING:
    from pytriton.engine.cache import ResponseCache
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.engine.stats import ModelStatistics
    from pytriton.executor.base import Outcome, RunningBatch
    from pytriton.executor.inference import Inference

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
        self._statistics.record_cache_hit(
            ended_ns - started_ns,
            ended_ns - inference.request.received_ns,
            time.time_ns() // 1_000_000,
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
        misses_ns += time.monotonic_ns() - started_ns
        self._statistics.record_cache_misses(count, misses_ns)
