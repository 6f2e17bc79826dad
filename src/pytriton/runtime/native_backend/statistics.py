# SPDX-License-Identifier: Apache-2.0
"""What a backend reports about its work: when it computed.

The server counts requests and responses itself. Of the reports it uses the times of the computation
of a batch, which are of the same clock as ours, CLOCK_MONOTONIC.
"""

from __future__ import annotations

from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, Kept, put_field, put_word, word


class BackendStatistics:
    """The reports of a backend."""

    def __init__(self) -> None:
        self._kept = Kept()
        self.computed_address = self._kept.words(0, 0)
        self._responses: Handles[None] = Handles("response statistics")

    @property
    def computed_ns(self) -> tuple[int, int]:
        """When the computation of the batch that is executed began and ended; 0: not reported."""
        return word(self.computed_address), word(self.computed_address, 1)

    def begin_batch(self) -> None:
        """Forget the times of the last batch."""
        put_field(self.computed_address, 0, 0)

    def _set_computed(self, start_ns: int, end_ns: int) -> None:
        put_field(self.computed_address, 0, start_ns)
        put_field(self.computed_address, 1, end_ns)

    @export("TRITONBACKEND_ModelInstanceReportStatistics")
    def _report(
        self,
        instance: int,
        request: int,
        is_success: bool,
        exec_start_ns: int,
        compute_start_ns: int,
        compute_end_ns: int,
        exec_end_ns: int,
    ) -> None:
        self._set_computed(compute_start_ns, compute_end_ns)

    @export("TRITONBACKEND_ModelInstanceReportBatchStatistics")
    def _report_batch(
        self,
        instance: int,
        batch_size: int,
        exec_start_ns: int,
        compute_start_ns: int,
        compute_end_ns: int,
        exec_end_ns: int,
    ) -> None:
        self._set_computed(compute_start_ns, compute_end_ns)

    @export("TRITONBACKEND_ModelInstanceResponseStatisticsNew")
    def _new(self, out: int) -> None:
        put_word(out, self._responses.add(None))

    @export("TRITONBACKEND_ModelInstanceResponseStatisticsDelete")
    def _delete(self, statistics: int) -> None:
        self._responses.pop(statistics)

    @export(
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetError",
    )
    def _set(self, statistics: int, value: int) -> None:
        self._responses.get(statistics)

    @export("TRITONBACKEND_ModelInstanceReportResponseStatistics")
    def _report_response(self, statistics: int) -> None:
        self._responses.get(statistics)
