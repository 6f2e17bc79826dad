# SPDX-License-Identifier: Apache-2.0
"""What a server counted for a model between two moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.client.kserve.records import KserveClient
from pytriton.tools.perf.server.questions import QuestionError


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a model: how often, and how long in all."""

    inferences: int = 0
    executions: int = 0
    rows: int = 0  # of all executions; inferences leave out those that failed
    requests: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    input_count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    cache_hits: int = 0
    cache_hit_ns: int = 0
    cache_misses: int = 0
    cache_miss_ns: int = 0

    def __sub__(self, other: Counted) -> Counted:
        return self._joined(other, lambda mine, theirs: mine - theirs)

    def __add__(self, other: Counted) -> Counted:
        return self._joined(other, lambda mine, theirs: mine + theirs)

    def _joined(self, other: Counted, join: Callable[[int, int], int]) -> Counted:
        return Counted(
            *(join(getattr(self, name), getattr(other, name)) for name in Counted.__slots__)
        )

    @property
    def compute_ns(self) -> int:
        return self.input_ns + self.infer_ns + self.output_ns

    @property
    def cache_ns(self) -> int:
        return self.cache_hit_ns + self.cache_miss_ns


@dataclasses.dataclass(frozen=True, slots=True)
class ServerCounts:
    """The counters of a model and of those that it is composed of.

    Attributes:
        composing: By name and version.
    """

    model: Counted
    composing: Mapping[tuple[str, str], Counted] = dataclasses.field(default_factory=dict)

    def __sub__(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.model - other.model,
            {
                key: counted - other.composing.get(key, Counted())
                for key, counted in self.composing.items()
            },
        )

    def __add__(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.model + other.model,
            {
                key: self.composing.get(key, Counted()) + other.composing.get(key, Counted())
                for key in {**self.composing, **other.composing}
            },
        )


class StatisticsReader:
    """Reads the counters of a model, and of those that it is composed of."""

    def __init__(
        self,
        questions: KserveClient,
        model: str,
        version: str,
        composing: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._questions = questions
        self._model = (model, version)
        self._composing = composing

    def read(self) -> ServerCounts | None:
        """The counters now; None if the server does not give them."""
        try:
            return self.ask()
        except QuestionError:
            return None

    def ask(self) -> ServerCounts:
        """The counters now.

        Raises:
            ServerError: The server does not give them.
        """
        of_model = self._versions(*self._model)
        composing: dict[tuple[str, str], Counted] = {}
        for name, version in self._composing:
            composing.update(self._versions(name, version))
        return ServerCounts(_sum(of_model), dict(sorted(composing.items())))

    def _versions(self, model: str, version: str) -> dict[tuple[str, str], Counted]:
        return {
            (str(each.get("name", model)), str(each.get("version", version))): counted_of(each)
            for each in self._questions.statistics(model, version)
        }


def _sum(versions: Mapping[tuple[str, str], Counted]) -> Counted:
    total = Counted()
    for each in versions.values():
        total += each
    return total


def _rows(batches: Sequence[Mapping[str, Any]]) -> int:
    return sum(
        int(each.get("batch_size", 0)) * int((each.get("compute_infer") or {}).get("count", 0))
        for each in batches
    )


def counted_of(statistics: Mapping[str, Any]) -> Counted:
    """Read one model's document; over gRPC numbers are texts, and zeros are left out."""
    times = statistics.get("inference_stats") or {}

    def count(name: str) -> int:
        return int((times.get(name) or {}).get("count", 0))

    def ns(name: str) -> int:
        return int((times.get(name) or {}).get("ns", 0))

    return Counted(
        inferences=int(statistics.get("inference_count", 0)),
        executions=int(statistics.get("execution_count", 0)),
        rows=_rows(statistics.get("batch_stats") or ()),
        requests=count("success"),
        request_ns=ns("success"),
        queue_ns=ns("queue"),
        input_count=count("compute_input"),
        input_ns=ns("compute_input"),
        infer_ns=ns("compute_infer"),
        output_ns=ns("compute_output"),
        cache_hits=count("cache_hit"),
        cache_hit_ns=ns("cache_hit"),
        cache_misses=count("cache_miss"),
        cache_miss_ns=ns("cache_miss"),
    )
