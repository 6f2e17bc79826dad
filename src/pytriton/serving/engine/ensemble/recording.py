# SPDX-License-Identifier: Apache-2.0
"""Adds requests that an ensemble has answered to its statistics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.messages import ExecutionTimes
from pytriton.serving.engine.stats import BatchRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.stats import ModelStatistics


def record_success(
    statistics: ModelStatistics,
    inferences: Sequence[Inference],
    compute_ns: Sequence[int],
    now_ns: int,
) -> None:
    """Count requests that succeeded, each as one execution.

    Args:
        statistics: The statistics of the ensemble.
        inferences: The requests.
        compute_ns: The input, infer and output times of the steps of each of them, summed.
        now_ns: The time.
    """
    input_ns, infer_ns, output_ns = compute_ns
    now_ms = time.time_ns() // 1_000_000
    requests = [inference.request for inference in inferences]
    for request in dict.fromkeys(requests):  # members of a chunk share one
        rows = request.rows or 1
        record = BatchRecord(
            rows,
            0,
            input_ns,
            input_ns + infer_ns,
            input_ns + infer_ns + output_ns,
            1,
            rows,
            now_ns - request.received_ns,
        )
        statistics.record_alike(record, requests.count(request), now_ms)


def record_first_response(statistics: ModelStatistics, inference: Inference) -> None:
    """Count the time to the first response of an ensemble that may have several."""
    if statistics.latencies is not None and not inference.response_count:
        elapsed_ns = time.monotonic_ns() - inference.request.received_ns
        statistics.latencies.on_first_response(elapsed_ns)
    inference.response_count += 1


def record_trace(inference: Inference, started_ns: int, now_ns: int) -> None:
    """Add the time of all steps to the trace of a request, if it has one."""
    if inference.trace is not None:
        inference.trace.add_execution(
            ExecutionTimes(inference.queued_ns, started_ns, started_ns, now_ns, now_ns)
        )
