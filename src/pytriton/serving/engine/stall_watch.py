# SPDX-License-Identifier: Apache-2.0
"""Detects models that execute requests for a long time and finish none.

It has no clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.serving.engine.served_model import ManagedModel

FIRST_REPORT_S = 30.0  # each later report comes after twice the time


@dataclass(slots=True)
class _Progress:
    """The counts of a model, and when they changed last."""

    counts: tuple[int, ...]
    since_s: float
    next_report_s: float = FIRST_REPORT_S  # after `since_s`


class StallWatch:
    """Compares the counts of models with those of the last check."""

    def __init__(self) -> None:
        self._progress: dict[ManagedModel, _Progress] = {}

    def check(self, models: Iterable[ManagedModel], now_s: float) -> list[str]:
        """Returns the messages to log about models that make no progress."""
        before, self._progress = self._progress, {}
        reports = []
        for model in models:
            if not model.running_count:
                continue
            counts = _counts(model)
            progress = before.get(model)
            if progress is None or progress.counts != counts:
                progress = _Progress(counts, now_s)
            self._progress[model] = progress
            elapsed_s = now_s - progress.since_s
            if elapsed_s >= progress.next_report_s:
                progress.next_report_s = 2 * elapsed_s
                reports.append(_report(model, elapsed_s))
        return reports


def _counts(model: ManagedModel) -> tuple[int, ...]:
    statistics = model.statistics
    responses = sum(response.compute_infer.count for response in statistics.responses)
    return (
        statistics.execution_count,
        statistics.success_count,
        statistics.fail.count,
        responses,
    )


def _report(model: ManagedModel, elapsed_s: float) -> str:
    return (
        f"model '{model.spec.name}' version {model.spec.version} has finished nothing for "
        f"{elapsed_s:.0f} s: {model.running_count} requests are being executed, "
        f"{model.statistics.pending_count} wait"
    )
