# SPDX-License-Identifier: Apache-2.0
"""Usage: python -m benchmarks.client_overhead [SECONDS]   our clients beside those of others.

All ask the same server, ours, for the same thing, in turns; each figure is the median of the
rounds. The others are bare tritonclient and, where PEERS_DIR has it, NVIDIA PyTriton's clients.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import servers
from benchmarks.client_calls import Load

PORT = 18400
ROUNDS = 5
CALLS = pathlib.Path(__file__).with_name("client_calls.py")

ADD_SUB: dict[str, Any] = {
    "model": "AddSub",
    "inputs": ("a", "b"),
    "outputs": ("add", "sub"),
    "size": 1,
}
IDENTITY: dict[str, Any] = {"model": "Ident", "inputs": ("x",), "outputs": ("y",), "size": 2**18}
ROWS = (
    ("infer_sample, 1 thread", ADD_SUB, "infer_sample", 1, False),
    ("infer_sample, 16 threads", ADD_SUB, "infer_sample", 16, False),
    ("infer_batch, 1 thread", ADD_SUB, "infer_batch", 1, False),
    ("infer_batch, 16 threads", ADD_SUB, "infer_batch", 16, False),
    ("infer_batch of 1 MiB, 1 thread", IDENTITY, "infer_batch", 1, False),
    ("asyncio, infer_sample, 16 tasks", ADD_SUB, "infer_sample", 16, True),
)


def loads(urls: dict[str, str], seconds: float) -> dict[str, Load]:
    """The loads by the titles of their rows."""
    return {
        f"{protocol} {title}": Load(
            url=url,
            **what,
            method=method,
            callers=callers,
            is_asyncio=is_asyncio,
            seconds=seconds,
        )
        for protocol, url in urls.items()
        for title, what, method, callers, is_asyncio in ROWS
    }


def clients() -> dict[str, list[str]]:
    """The commands that make calls, ours first."""
    found = {
        "ours": [sys.executable, str(CALLS), "ours"],
        "tritonclient": [sys.executable, str(CALLS), "tritonclient"],
    }
    folder = os.environ.get("PEERS_DIR")
    python = pathlib.Path(folder).expanduser() / "venv" / "bin" / "python" if folder else None
    if python is not None and python.exists():
        found["NVIDIA PyTriton"] = [str(python), str(CALLS), "nvidia"]
    return found


def calls_per_s(command: list[str], load: Load) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*command, json.dumps(dataclasses.asdict(load))],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.splitlines()[-1])


def row(title: str, rates: list[float]) -> str:
    """Calls a second of each client, and how long one takes with ours, compared with the others."""
    ours, *others = rates
    cells = [f"{rate:,.0f}" for rate in rates] + [f"{other / ours:.2f}" for other in others]
    return f"| {' | '.join([title, *cells])} |"


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    (system, *_) = servers.known_systems(None, PORT)
    commands = clients()
    ours, *others = commands
    titles = [f"{name} [calls/s]" for name in commands]
    titles += [f"time of a call, {ours} : {other}" for other in others]
    print(f"| load | {' | '.join(titles)} |")
    print(f"|---|{'--:|' * len(titles)}")
    with servers.running(system, PORT) as server:
        urls = {
            "HTTP": f"http://127.0.0.1:{server.port}",
            "gRPC": f"grpc://127.0.0.1:{server.grpc_port}",
        }
        for title, load in loads(urls, seconds).items():
            rounds = [
                [calls_per_s(command, load) for command in commands.values()] for _ in range(ROUNDS)
            ]
            print(row(title, [statistics.median(rates) for rates in zip(*rounds, strict=True)]))


if __name__ == "__main__":
    main()
