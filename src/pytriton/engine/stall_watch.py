# SPDX-License-Identifier: Apache-2.0
"""Notices models that execute requests for long and finish none. Pure: time comes in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.engine.served_model import ServedModel

FIRST_REPORT_S = 30.0  # the next ones after twice as long each time


@dataclass(slots=True)
class _Standing:
    """What a model had done when something was finished last."""

    progress: tuple[int, ...]
    since_s: float
    next_report_s: float = FIRST_REPORT_S  # after `since_s`


class StallWatch:
    """Compares what models have done with what they had done at the last look."""

    def __init__(self) -> None:
        self._standings: dict[ServedModel, _Standing] = {}

    def look(self, models: Iterable[ServedModel], now_s: float) -> list[str]:
        """What is to be said of models that stand still.

        Args:
            models: All that serve.
            now_s: The time, on a clock that never goes back.
        """
        before, self._standings = self._standings, {}
        reports = []
        for model in models:
            if not model.running_count:
                continue
            progress = _progress(model)
            standing = before.get(model)
            if standing is None or standing.progress != progress:
                standing = _Standing(progress, now_s)
            self._standings[model] = standing
            elapsed_s = now_s - standing.since_s
            if elapsed_s >= standing.next_report_s:
                standing.next_report_s = 2 * elapsed_s
                reports.append(_report(model, elapsed_s))
        return reports


def _progress(model: ServedModel) -> tuple[int, ...]:
    statistics = model.statistics
    responses = sum(response.compute_infer.count for response in statistics.responses)
    return (
        statistics.execution_count,
        statistics.success_count,
        statistics.fail.count,
        responses,
    )


def _report(model: ServedModel, elapsed_s: float) -> str:
    return (
        f"model '{model.spec.name}' version {model.spec.version} has finished nothing for "
        f"{elapsed_s:.0f} s: {model.running_count} requests are being executed, "
        f"{model.statistics.pending_count} wait"
    )
