# SPDX-License-Identifier: Apache-2.0
"""What a load test asks of a server beside inference: its models, its counters, its GPUs."""

from __future__ import annotations

import dataclasses
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.client.kserve.address import Address, Tls
from pytriton.client.kserve.errors import ErrorWords, HttpReply
from pytriton.client.kserve.http_client import kserve_client
from pytriton.client.kserve.metrics import metrics_port_hint, series
from pytriton.client.kserve.records import KserveClient
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import parse_load_address

_TIMEOUT_S = 60.0
_METRICS_TIMEOUT_S = 2.0
_FAMILIES = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_power_usage": "power",
    "nv_gpu_memory_used_bytes": "memory_used",
    "nv_gpu_memory_total_bytes": "memory_total",
}


class QuestionError(PerfError):
    """The server refused a question, or cannot be reached."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and how it is spoken to.

    Attributes:
        url: `host:port`, with or without a scheme.
        is_grpc: gRPC instead of HTTP.
        headers: Headers of each request (metadata over gRPC).
        tls: Encrypted connections; None: plain ones, unless the URL says otherwise.
    """

    url: str
    is_grpc: bool = False
    headers: Sequence[tuple[str, str]] = ()
    tls: Tls | None = None

    @property
    def host_and_port(self) -> str:
        return self.url.split("://", 1)[-1].split("/", 1)[0]

    def parsed(self) -> Address:
        """Read the URL.

        Raises:
            GeneratorError: It is malformed.
        """
        return parse_load_address(self.url, "grpc" if self.is_grpc else "http", self.tls)


class _QuestionWords(ErrorWords):
    """Errors in the words of load tests, which name the server as it was typed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def unreachable(self, address: Address, error: Exception, timeout_s: float) -> Exception:
        if isinstance(error, http.client.BadStatusLine):
            return QuestionError(
                f"{self._name} does not speak HTTP; is it the port for gRPC? That needs -i grpc"
            )
        return QuestionError(f"the server at {self._name} cannot be reached: {error}")

    def unexpected(
        self, address: Address, path: str, reply: HttpReply, error: Exception
    ) -> Exception:
        return QuestionError(
            metrics_port_hint(address.host, address.port)
            or f"{self._name} does not answer as a KServe v2 server does: status {reply.status}, "
            f"{reply.text[:500]!r}"
        )

    def refused(self, address: Address, reply: HttpReply) -> Exception:
        try:
            document = json.loads(reply.body)
        except ValueError as error:
            return self.unexpected(address, "", reply, error)
        text = document.get("error") if isinstance(document, dict) else None
        return QuestionError(str(text or f"the server answered with status {reply.status}"))

    def call_failed(self, address: Address, code: str, details: str, timeout_s: float) -> Exception:
        return QuestionError(details)


def questions_of(server: ServerAddress) -> KserveClient:
    """Returns a client whose errors are `QuestionError`; nothing is sent yet.

    Raises:
        GeneratorError: The address is malformed.
    """
    words = _QuestionWords(server.host_and_port)
    return kserve_client(server.parsed(), dict(server.headers), _TIMEOUT_S, server.tls, words)


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


def read_gauges(page: str) -> dict[str, dict[str, float]]:
    """The gauges of a page for Prometheus, by name and GPU."""
    found: dict[str, dict[str, float]] = {}
    for family, labels, value in series(page):
        if family in _FAMILIES and "gpu_uuid" in labels:
            found.setdefault(_FAMILIES[family], {})[labels["gpu_uuid"]] = value
    return found


def fetch(url: str) -> str:
    """The page; empty if the server does not give it."""
    full = url if "://" in url else f"http://{url}"
    try:
        with urllib.request.urlopen(full, timeout=_METRICS_TIMEOUT_S) as answer:  # noqa: S310  a person's own URL
            return str(answer.read().decode(errors="replace"))
    except (OSError, urllib.error.URLError):
        return ""


class GpuGauges:
    """Means of gauges over a window, and the most of the memory in use."""

    def __init__(
        self, fetch_page: Callable[[], str], interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._fetch = fetch_page
        self._interval_s = interval_s
        self._clock = clock
        self._samples: list[Mapping[str, Mapping[str, float]]] = []
        self._next_s = 0.0

    def begin(self) -> None:
        self._samples = []
        self._next_s = self._clock()
        self.tick()

    def tick(self) -> None:
        if self._clock() >= self._next_s:
            self._samples.append(read_gauges(self._fetch()))
            self._next_s = self._clock() + self._interval_s

    def end(self) -> Mapping[str, Mapping[str, float]]:
        values: dict[str, dict[str, list[float]]] = {}
        for sample in self._samples:
            for gauge, by_gpu in sample.items():
                for gpu, value in by_gpu.items():
                    values.setdefault(gauge, {}).setdefault(gpu, []).append(value)
        return {
            gauge: {
                gpu: max(each) if gauge == "memory_used" else sum(each) / len(each)
                for gpu, each in by_gpu.items()
            }
            for gauge, by_gpu in values.items()
        }
