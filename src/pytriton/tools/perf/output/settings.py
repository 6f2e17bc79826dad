# SPDX-License-Identifier: Apache-2.0
"""What the text of a report depends on beside the numbers."""

from __future__ import annotations

import dataclasses

from pytriton.tools.perf.measuring.results import Mode


@dataclasses.dataclass(frozen=True, slots=True)
class ReportSettings:
    """What was measured, and how.

    Attributes:
        mode: What the load is.
        load_limit: The end of a range; None for a single level.
        latency_limit_ms: The latency that ends the search; 0: none.
        percentile: The latency that counts; None: the mean.
        window_ms: Length of a window; 0 if requests are counted.
        window_requests: Requests of a window; 0 if the time counts.
        request_count: Requests of the whole run; 0: windows.
        verbose: Windows are reported, and times apart.
    """

    mode: Mode = Mode.CONCURRENCY
    is_grpc: bool = False
    is_async: bool = False
    is_decoupled: bool = False
    has_sequences: bool = False
    batch_size: int = 1
    load_limit: float | None = None
    latency_limit_ms: int = 0
    percentile: int | None = None
    is_binary_search: bool = False
    is_poisson: bool = False
    window_ms: int = 5000
    window_requests: int = 0
    request_count: int = 0
    max_trials: int = 10
    verbose: bool = False
