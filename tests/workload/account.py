# SPDX-License-Identifier: Apache-2.0
"""The account of all calls of a run, and its comparison with what the server counted.

A call whose client left, or whose connection was lost, may count as anything: so each number of the
server has a lowest and a highest value. They are the same if every call had an answer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tests.workload import models
from tests.workload.calls import INFERENCES, Call, End, Kind, Port

_SAMPLE = re.compile(r"(nv_inference_[a-z_]+)\{([^}]*)\} ([0-9.e+-]+)")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')
_DEADLINE_EXCEEDED = 4  # of gRPC; the model may have done its work nevertheless
# Errors of requests and of answers that cross shared memory.
_ON_THE_WAY = ("a tensor in shared memory could not be read", "no room for a tensor")
# The words of enums are looked up for every call; asking the enum takes a microsecond.
_KINDS = {(port, kind): f"{port.value} {kind.value}" for port in Port for kind in Kind}
_ENDS = {end: end.value for end in End}
_SUCCESS, _FAILURE = "nv_inference_request_success", "nv_inference_request_failure"
_PENDING = "nv_inference_pending_request_count"


@dataclasses.dataclass(slots=True)
class Tally:
    """The inferences of one model.

    Args:
        sent: those that began.
        answered: those that succeeded for sure.
        rows: rows of these.
        failed: those that the model itself refused, for sure.
        refused: those with another error, which were no successes.
        unknown: those whose end the client did not see, or whose answer may have failed after the
            model had made it: its outputs had no place, could not be compressed, or did not reach
            the front end.
        is_whole: whether the server has counted all of them; it starts anew when it loads a model.
    """

    sent: int = 0
    answered: int = 0
    rows: int = 0
    failed: int = 0
    refused: int = 0
    unknown: int = 0
    unknown_rows: int = 0
    is_whole: bool = True


class Account:
    """Sums over calls.

    Args:
        served: names of models, which are in the account from the beginning.
    """

    def __init__(self, served: Iterable[str] = ()) -> None:
        self.models = {name: Tally() for name in served}
        self.sent = 0
        self.ends: dict[str, int] = {}  # by how calls ended
        self.errors: dict[str, int] = {}  # by protocol and status
        self.kinds: dict[str, int] = {}  # by protocol and kind

    def tally(self, model: str) -> Tally:
        return self.models.setdefault(model, Tally())

    def forget(self, model: str) -> None:
        """The server counts anew; without a name, for all models."""
        for name in [model] if model else list(self.models):
            self.tally(name).is_whole = False
        for outer, calls in models.INNER_CALLS.items():
            if model in calls and outer in models.ENSEMBLES:
                self.tally(outer).is_whole = False  # it is replaced with its steps

    def began(self, call: Call) -> None:
        self.sent += 1
        kind = _KINDS[call.port, call.kind]
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if call.kind in INFERENCES:
            self.tally(call.model).sent += 1
        elif call.kind is Kind.LOAD:
            self.forget(call.model)

    def ended(self, call: Call) -> None:
        outcome = call.outcome
        assert outcome.end is not None
        end = _ENDS[outcome.end]
        self.ends[end] = self.ends.get(end, 0) + 1
        if outcome.end is End.ERROR:
            error = f"{call.port.value} {outcome.status}"
            self.errors[error] = self.errors.get(error, 0) + 1
        if call.kind not in INFERENCES:
            return
        tally = self.tally(call.model)
        rows = _rows(call)
        own = models.failure_of(call)
        if outcome.end is End.ANSWERED:
            tally.answered += 1
            tally.rows += rows
        elif outcome.end is End.ERROR and own and own in outcome.error:
            tally.failed += 1
        elif (
            outcome.end is End.ERROR
            and outcome.status != _DEADLINE_EXCEEDED
            and not (call.places or call.accepts or outcome.error.startswith(_ON_THE_WAY))
        ):
            tally.refused += 1
        else:
            tally.unknown += 1
            tally.unknown_rows += rows

    def compare(self, statistics: Any = None, metrics: str = "") -> Iterator[str]:
        """Sentences on what the server counted otherwise."""
        if statistics is not None:
            for each in statistics["model_stats"]:
                yield from self._compare_model(each)
        if metrics:
            yield from self._compare_metrics(metrics, statistics)

    def _limits(self, name: str) -> tuple[int, int, int, int]:
        """The lowest and highest numbers of successes and of failures, with inner calls."""
        tally = self.tally(name)
        low, high = tally.answered, tally.answered + tally.unknown
        low_fail, high_fail = tally.failed, tally.failed + tally.refused + tally.unknown
        for outer, calls in models.INNER_CALLS.items():
            count = calls.get(name, 0)
            if count and outer in self.models:
                other = self.models[outer]
                low += count * other.answered
                high += count * other.sent
                high_fail += count * (other.sent - other.answered)
        if not tally.is_whole:
            low = low_fail = 0
        return low, high, low_fail, high_fail

    def _compare_model(self, stats: Any) -> Iterator[str]:
        name = stats["name"]
        low, high, low_fail, high_fail = self._limits(name)
        success = int(stats["inference_stats"]["success"]["count"])
        fail = int(stats["inference_stats"]["fail"]["count"])
        if not low <= success <= high:
            yield f"the server counted {success} successes of '{name}', clients {low} to {high}"
        if not low_fail <= fail <= high_fail:
            counted = f"clients {low_fail} to {high_fail}"
            yield f"the server counted {fail} failures of '{name}', {counted}"
        executions, rows = int(stats["execution_count"]), int(stats["inference_count"])
        batches = sum(int(each["compute_infer"]["count"]) for each in stats["batch_stats"])
        largest = max((int(each["batch_size"]) for each in stats["batch_stats"]), default=0)
        if largest > models.LARGEST_BATCHES.get(name, 1):
            yield f"a batch of '{name}' had {largest} rows"
        if batches > executions:
            yield f"the server counted {batches} batches of '{name}', but {executions} executions"
        hits = int(stats["inference_stats"]["cache_hit"]["count"])
        tally = self.tally(name)
        if not hits and not any(name in inner for inner in models.INNER_CALLS.values()):
            most = tally.rows + tally.unknown_rows
            least = tally.rows if tally.is_whole else 0
            if not least <= rows <= most:
                yield f"the server counted {rows} rows of '{name}', clients {least} to {most}"

    def _compare_metrics(self, metrics: str, statistics: Any) -> Iterator[str]:
        counted: dict[tuple[str, str], float] = {}
        for family, labels, value in _SAMPLE.findall(metrics):
            model = dict(_LABEL.findall(labels)).get("model", "")
            counted[family, model] = counted.get((family, model), 0.0) + float(value)
        for (family, model), value in counted.items():
            if family == _PENDING and value:
                yield f"{value:g} requests of '{model}' are pending, but nothing is under way"
        if statistics is None:
            return
        for each in statistics["model_stats"]:
            for family, name in ((_SUCCESS, "success"), (_FAILURE, "fail")):
                value = counted.get((family, each["name"]))
                count = int(each["inference_stats"][name]["count"])
                if value != count:
                    yield f"{family} of '{each['name']}' is {value}, statistics say {count}"


def _rows(call: Call) -> int:
    """How many rows the statistics count for a call."""
    if not call.inputs or len(call.inputs[0].shape) == 1:
        return 1
    return call.inputs[0].shape[0]
