# SPDX-License-Identifier: Apache-2.0
"""One scene: a server is started, loaded and hit by faults; then it rests and is looked over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.chaos import checks, resources
from tests.chaos.clients import ChaosWorld, Crowd, plans
from tests.chaos.faults import Catalogue, Faults
from tests.chaos.judge import ChaosOracle
from tests.chaos.report import Finding, SceneReport
from tests.chaos.resources import Snapshot
from tests.chaos.schedule import Kind, Scene, ServerKind, make_schedule
from tests.chaos.servers import ChaosServer
from tests.chaos.timeline import Timeline
from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S
from tests.workload import models, oracle
from tests.workload.calls import POLITE, Call, Port

# Models that faults load and unload. The others have statistics of the whole run.
_CHANGEABLE = ("double", "strings", "limited", "stream", "accumulate_oldest", "large")
# How long calls may still run when no new ones begin: longer than any deadline of a call, and
# than what a client of the workload waits before it reads on.
DRAIN_S = 2 * DEADLINE_S
WARM_UP_S = 4.0
QUIET_S = 4.0
_COMPARISONS = 10


def catalogue(names: Collection[str]) -> Catalogue:
    """What is above the models, by the calls that models make of each other."""
    above = {name: {name} for name in names}
    for caller, called in models.INNER_CALLS.items():
        for name in called:
            if caller in names:
                above[name].add(caller)
    return Catalogue(
        {name: frozenset(group) for name, group in above.items()},
        [name for name in _CHANGEABLE if name in names],
    )


class SceneRun:
    """The parts of one scene while it runs."""

    def __init__(self, scene: Scene, folder: Path, kinds: Sequence[Kind], clients: int) -> None:
        self.scene = scene
        self.server = ChaosServer(scene, folder)
        self._kinds = kinds
        self._clients = clients
        self._facts: list[str] = []
        self._findings: list[Finding] = []
        self._names: list[str] = []

    def run(self) -> SceneReport:
        if self.scene.server is ServerKind.REPOSITORY:
            self._names = models.write_repository(self.server.repository)
        else:
            self._names = [each.name for each in models.bound_models()]
        try:
            self.server.start(self._names)
            return asyncio.run(self._run())
        finally:
            self.server.kill()

    async def _run(self) -> SceneReport:
        ports = dict(zip((Port.HTTP, Port.GRPC, Port.METRICS), self.server.ports, strict=True))
        self._world = ChaosWorld(ports)
        self._oracle = ChaosOracle(self._world.now, self._names)
        self._world.on_silence = self._oracle.silent_since
        self._line = Timeline(self._world.now, self._oracle)
        self._plans = plans(self.scene, self._names)
        faults = Faults(self.server, catalogue(self._names), self._line)
        await self._load(WARM_UP_S)
        before = await asyncio.to_thread(self._settled)
        crowd = self._crowd()
        await faults.run(make_schedule(self.scene, self._kinds))
        await self._finish(crowd)
        after = await asyncio.to_thread(self._look_over, before)
        # Statistics of models that were loaded again are exact from here on.
        await self._load(QUIET_S)
        await asyncio.to_thread(self._end)
        for what, since_s, until_s in faults.problems:
            self._find(what, since_s, until_s)
        return SceneReport(
            self.scene,
            self._oracle.table(),
            faults.hits,
            [*self._findings, *map(self._with_events, self._oracle.findings)],
            resources.table(before, after),
            self._facts,
        )

    # Findings

    def _find(self, what: str, since_s: float = 0.0, until_s: float = -1.0) -> None:
        around = tuple(self._line.around(since_s, until_s)) if until_s >= since_s else ()
        self._findings.append(Finding(what, around))

    def _with_events(self, found: oracle.Finding) -> Finding:
        since_s = found.time_s
        if found.call is not None and found.call.outcome.submitted_s is not None:
            since_s = found.call.outcome.submitted_s
        what = f"{found}{_details(found.call)}"
        return Finding(what, tuple(self._line.around(since_s, found.time_s)))

    # Load

    def _crowd(self) -> Crowd:
        crowd = Crowd(self._world, self._oracle, self._plans, self._clients, self.server.token)
        crowd.start()
        return crowd

    async def _load(self, seconds: float) -> None:
        """Send calls for a while without any fault; then statistics have to fit."""
        crowd = self._crowd()
        await asyncio.sleep(seconds)
        await self._finish(crowd)
        await asyncio.to_thread(self._compare)

    async def _finish(self, crowd: Crowd) -> None:
        self._oracle.stop()
        await crowd.stop(DRAIN_S)
        self._oracle.resume()

    def _compare(self) -> None:
        """Compare statistics and metrics with the account, when nothing is under way."""
        found = len(self._oracle.findings)
        for _ in range(_COMPARISONS):
            del self._oracle.findings[found:]
            statistics = self.server.ask("/v2/models/stats").json
            metrics = call(self.server.metrics_port, "/metrics").body.decode()
            self._oracle.compare(statistics, metrics)
            if len(self._oracle.findings) == found:
                return
            # A request whose client left may still be with its model.
            time.sleep(1.0)

    # Before and after

    def _settled(self) -> Snapshot:
        """What the server holds when it has worked; a second without work lets streams end."""
        time.sleep(1.0)
        return self.server.snapshot()

    def _look_over(self, before: Snapshot) -> Snapshot:
        began_s = time.monotonic()
        after, grown = checks.rest(self.server, before)
        self._facts.append(f"at rest after {time.monotonic() - began_s:.1f} s")
        found = [*grown, *checks.health(self.server, self._names)]
        found += checks.log_is_written(self.server)
        for each in found:
            self._find(each)
        self._compare()
        return after

    def _end(self) -> None:
        began_s = time.monotonic()
        for each in checks.ends_in_time(self.server):
            self._find(each)
        self._facts.append(f"ended {time.monotonic() - began_s:.1f} s after SIGTERM")


def _details(about: Call | None) -> str:
    """What else explains how a call ended."""
    if about is None:
        return ""
    parts = [
        f"deadline {about.deadline_s} s" if about.deadline_s is not None else "",
        f"timeout {about.timeout_us} us" if about.timeout_us else "",
        f"payload {about.text!r} {about.payload[:120]!r}" if about.payload else "",
        f"{about.conduct}" if about.conduct is not POLITE else "",
        f"error {about.outcome.error!r}" if about.outcome.error else "",
    ]
    return "".join(f"; {each}" for each in parts if each)


def run_scene(scene: Scene, folder: Path, kinds: Sequence[Kind], clients: int) -> SceneReport:
    return SceneRun(scene, folder, kinds, clients).run()
