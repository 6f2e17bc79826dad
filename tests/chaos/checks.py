# SPDX-License-Identifier: Apache-2.0
"""What has to hold when the faults are over: resources, health, logs, and an end in time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.chaos import resources
from tests.chaos.resources import Snapshot
from tests.chaos.servers import END_WITHIN_S, ChaosServer
from tests.e2e.http_client import is_port_free
from tests.e2e.waiting import DEADLINE_S, eventually

_POLL_S = 0.5


def rest(server: ChaosServer, before: Snapshot) -> tuple[Snapshot, list[str]]:
    """Let the server come to rest; what it holds then, and what of that is too much."""
    after = server.snapshot()
    # Memory is returned in periods of five seconds, and codec processes end after thirty.
    end_s = time.monotonic() + DEADLINE_S
    while (grown := resources.growth(before, after)) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
        after = server.snapshot()
    return after, grown


def health(server: ChaosServer, models: Sequence[str]) -> list[str]:
    """What the server says wrongly of itself, while all models are served."""
    found = []
    for path in ("live", "ready"):
        answer = server.ask(f"/v2/health/{path}")
        if answer.status != 200:
            found.append(f"/v2/health/{path} answered {answer.status}: {answer.body[:500]!r}")
    index = {row["name"]: row for row in server.ask("/v2/repository/index", method="POST").json}
    for name in models:
        row = index.get(name, {})
        if row.get("state") != "READY":
            found.append(f"the index says of {name}: {row}")
        if not server.is_ready(name):
            found.append(f"{name} says that it is not ready")
    return found


def log_is_written(server: ChaosServer) -> list[str]:
    """The access log is written again after the disk was full and its file was moved."""
    name = f"no-such-model-{time.monotonic_ns()}"
    server.ask(f"/v2/models/{name}/ready")
    text_is_there = eventually(
        lambda: server.access_log.exists() and name in server.access_log.read_text(errors="replace")
    )
    return [] if text_is_there else [f"the access log has no line about a request for {name}"]


def ends_in_time(server: ChaosServer) -> list[str]:
    """SIGTERM ends the server in time, with exit code 0, and nothing is left of it."""
    code, seconds = server.end()
    if code is None:
        return [f"SIGTERM did not end the server within {END_WITHIN_S:.0f} s"]
    found = []
    if code != 0:
        found.append(f"the exit code after SIGTERM is {code}: {server.output[-2000:]}")
    if not eventually(lambda: not server.family()):
        found.append(f"processes are left {seconds:.1f} s after SIGTERM: {server.family()}")
    found += [
        f"port {port} is taken after the end" for port in server.ports if not is_port_free(port)
    ]
    left = [str(path) for path in server.temporary.rglob("*")]
    found += [f"temporary file {path} is left after the end" for path in left]
    return found
