# SPDX-License-Identifier: Apache-2.0
"""AddSub on a Ray cluster of this machine: on actors of ours, on workers without Ray, on Ray Serve.

All servers run at the same time and get the load in turns. Each has one instance. The processor
time of those on Ray is that of all processes of the cluster and of the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import pathlib
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import http_loads, processes, servers
from benchmarks.http_loads import WrkReport
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE, RunningServer, System
from benchmarks.table import Comparison
from tests.cluster.ray_cluster import RayNodes

SUBJECT, TCP = "model.py on an actor", "model.py on an actor, TCP"
LOCAL = "model.py on a worker"
BOUND_ACTOR, BOUND = "function on an actor", "function in the user's process"
RAY_SERVE, FAST_RAY_SERVE = "Ray Serve", "Ray Serve, high throughput"
TABLE = Comparison(
    "Instances on Ray", SUBJECT, peers=(TCP, LOCAL, BOUND_ACTOR, BOUND, RAY_SERVE, FAST_RAY_SERVE)
)

CONNECTIONS = 64
PORTS = 10  # between the first ports of two servers
TURNS = 3
NODE = {"head": {"num_cpus": 16}}  # so that all find room; the load comes to one at a time
# What Ray's pages name for high throughput; HAProxy then stands in for the proxy in Python.
HIGH_THROUGHPUT = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}


@dataclasses.dataclass(frozen=True, eq=False)
class Contestant:
    """A server: how it is started on a port, and the cluster that it uses, if it uses one."""

    title: str
    start: Callable[[int], System]
    cluster: RayNodes | None = None
    is_ray_serve: bool = False


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one load of one server has shown."""

    report: WrkReport
    cpu_s: float


def measure(_peers: pathlib.Path | None, port: int, seconds: float) -> dict[str, list[Measurement]]:
    """Loads all servers in turns; the best turn counts."""
    if not has_ray("ray"):
        return {}
    with contextlib.ExitStack() as stack:
        clusters = stack.enter_context(started_clusters())
        body = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "body"
        body.write_text(json.dumps({"a": 1, "b": 2}))
        running = {
            contestant: stack.enter_context(servers.running(contestant.start(first), first))
            for first, contestant in zip(itertools.count(port, PORTS), contestants(clusters))
        }
        for contestant, server in running.items():
            check(contestant, server)
        return _figures(running, body, seconds)


@contextlib.contextmanager
def started_clusters() -> Iterator[tuple[RayNodes, RayNodes | None]]:
    """The cluster of all servers, and, if Ray Serve is installed, one with its other settings."""
    with contextlib.ExitStack() as stack:
        cluster = RayNodes(NODE)
        stack.callback(cluster.stop)
        cluster.start()
        if not has_ray_serve():
            print("skipping Ray Serve: not installed (pip install 'ray[serve]')", file=sys.stderr)
            yield cluster, None
            return
        fast_cluster = RayNodes(NODE)
        stack.callback(fast_cluster.stop)
        fast_cluster.environment |= HIGH_THROUGHPUT
        fast_cluster.start()
        yield cluster, fast_cluster


def has_ray(row: str) -> bool:
    """Says so if the row has to be skipped."""
    is_there = importlib.util.find_spec("ray") is not None
    if not is_there:
        print(f"skipping {row}: Ray is not installed (pip install 'ray[serve]')", file=sys.stderr)
    return is_there


def has_ray_serve() -> bool:
    return all(importlib.util.find_spec(name) for name in ("fastapi", "starlette", "uvicorn"))


def contestants(clusters: tuple[RayNodes, RayNodes | None]) -> list[Contestant]:
    cluster, fast_cluster = clusters
    found = [
        Contestant(SUBJECT, lambda port: _on_ray(cluster, port), cluster),
        Contestant(TCP, lambda port: _over_tcp(_on_ray(cluster, port)), cluster),
        Contestant(LOCAL, lambda port: servers.repository(None, ["AddSub"], port)),
        Contestant(BOUND_ACTOR, lambda port: _bound_on_ray(cluster, port), cluster),
        Contestant(BOUND, lambda port: servers.serving("{}", ["AddSub"], port)),
    ]
    if fast_cluster is not None:
        for title, its in ((RAY_SERVE, cluster), (FAST_RAY_SERVE, fast_cluster)):
            start = _ray_serve_starter(its)
            found.append(Contestant(title, start, its, is_ray_serve=True))
    return found


def _on_ray(cluster: RayNodes, port: int) -> System:
    options = ["--executor=ray", f"--ray-address={cluster.address}"]
    system = servers.tritonserver_with(options, port)
    return dataclasses.replace(system, environment=cluster.environment)


def _over_tcp(system: System) -> System:
    _, *options = system.command
    command = [sys.executable, str(HERE / "tritonserver_over_tcp.py"), *options]
    return dataclasses.replace(system, command=command)


def _bound_on_ray(cluster: RayNodes, port: int) -> System:
    environment = {**cluster.environment, "RAY_ADDRESS": cluster.address}
    system = servers.serving("--ray", ["AddSub"], port)
    return dataclasses.replace(system, environment=environment)


def _ray_serve_starter(cluster: RayNodes) -> Callable[[int], System]:
    def start(port: int) -> System:
        command = [sys.executable, str(HERE / "ray_serve_app.py"), str(port), cluster.address]
        return System("ray_serve", "Ray Serve", command, cluster.environment, models=("AddSub",))

    return start


def check(contestant: Contestant, server: RunningServer) -> None:
    """A server that answers wrongly is not worth measuring."""
    if not contestant.is_ray_serve:
        http_loads.check_add_sub(server)
        return
    body = json.dumps({"a": 1, "b": 2}).encode()
    with urllib.request.urlopen(f"{server.url}/v2/models/AddSub/infer", body, 30) as answer:
        outputs = json.load(answer)
    if outputs != {"add": 3.0, "sub": -1.0}:
        raise RuntimeError(f"expected add 3 and sub -1, got {outputs}")


def _figures(
    running: Mapping[Contestant, RunningServer], body: pathlib.Path, seconds: float
) -> dict[str, list[Measurement]]:
    turns: dict[Contestant, list[Turn]] = {contestant: [] for contestant in running}
    for contestant, server in running.items():  # warm-up
        _load(contestant, server, body, 1)
    for _ in range(TURNS):
        for contestant, server in running.items():
            used_s = _cpu_seconds(contestant, server)
            report = _load(contestant, server, body, seconds)
            used_s = _cpu_seconds(contestant, server) - used_s
            turns[contestant].append(Turn(report, used_s))
    return {contestant.title: figures_of(taken) for contestant, taken in turns.items()}


def figures_of(turns: Sequence[Turn]) -> list[Measurement]:
    """The best of the turns, for each figure by itself."""
    row = f"HTTP AddSub c={CONNECTIONS}"
    reports = [turn.report for turn in turns]
    time_us = min(1e6 * turn.cpu_s / turn.report.requests for turn in turns)
    p50_ms, p99_ms = (min(r.p50_us for r in reports) / 1e3, min(r.p99_us for r in reports) / 1e3)
    return [
        Measurement(row, max(report.rate for report in reports), "req/s"),
        Measurement(f"{row}, processor time", time_us, "us", higher_is_better=False),
        Measurement(f"{row} p50", p50_ms, "ms", higher_is_better=False),
        Measurement(f"{row} p99", p99_ms, "ms", higher_is_better=False),
    ]


def _load(
    contestant: Contestant, server: RunningServer, body: pathlib.Path, seconds: float
) -> WrkReport:
    """Each gets the body that its users would send."""
    if contestant.is_ray_serve:
        arguments = [str(body)]
        return http_loads.wrk(server, "request.lua", "AddSub", CONNECTIONS, seconds, arguments)
    return http_loads.wrk(server, "addsub.lua", "AddSub", CONNECTIONS, seconds)


def _cpu_seconds(contestant: Contestant, server: RunningServer) -> float:
    used_s = processes.cpu_seconds(server.pid)
    if contestant.cluster is not None:
        used_s += processes.cpu_seconds(contestant.cluster.pid)
    return used_s
