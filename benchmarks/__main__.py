# SPDX-License-Identifier: Apache-2.0
"""Measures every available system in turn and prints tables: python -m benchmarks --help."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from benchmarks import (
    compiled_loads,
    generator_loads,
    in_process_loads,
    loads,
    onnx_loads,
    ray_large_loads,
    ray_loads,
    servers,
    table,
    user_loads,
)
from benchmarks.measurement import Measurement
from benchmarks.table import Comparison


class SideBySide(Protocol):
    """A module that measures one row."""

    TABLE: Comparison

    def measure(
        self, peers: pathlib.Path | None, port: int, seconds: float
    ) -> dict[str, list[Measurement]]:
        """Returns the figures of each contestant by its title."""


SYSTEMS = "ours,pytriton,repository,triton"
COMPARISONS = [
    Comparison("Bound functions", servers.OURS, peers=(servers.NVIDIA_PYTRITON, servers.TRITON)),
    Comparison(
        "Model repositories: tritonserver against tritonserver",
        servers.OUR_TRITONSERVER,
        peers=(servers.TRITON,),
    ),
]
# Rows whose contestants run at the same time; each has a table of its own.
SIDE_BY_SIDE: Mapping[str, SideBySide] = {
    "onnx": onnx_loads,
    "compiled": compiled_loads,
    "in_process": in_process_loads,
    "perf": generator_loads,
    "ray": ray_loads,
    "ray_large": ray_large_loads,
}
ROWS = (*user_loads.ROWS, *loads.ROWS, *SIDE_BY_SIDE)
TOOLS = {**loads.TOOLS, "onnx": ("wrk", "h2load"), "compiled": ("wrk", "h2load", "cc")}
TOOLS["perf"] = ("wrk", "h2load")
TOOLS["ray"] = ("wrk",)
TOOLS.update(dict.fromkeys(user_loads.ROWS, ("wrk", "cc")))

EPILOG = """
What our own client adds to a call is measured apart, beside bare tritonclient:
python -m benchmarks.client_overhead [SECONDS]. benchmarks/README.md says what each row means.
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__, epilog=EPILOG)
    parser.add_argument(
        "--systems", default=SYSTEMS, help="which, comma-separated (default: %(default)s)"
    )
    parser.add_argument(
        "--rows",
        type=chosen_rows,
        default=",".join(ROWS),
        help="which, comma-separated (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=1, help="the table shows the median of these")
    parser.add_argument(
        "--forms",
        type=chosen_forms,
        help="which requests of the rows users and composed, comma-separated (default: all)",
    )
    parser.add_argument(
        "--connections",
        type=lambda names: [int(name) for name in names.split(",")],
        help="of the rows users and composed, comma-separated (default: 64, for some also 1)",
    )
    parser.add_argument(
        "--instances", type=int, default=1, help="of the models of the row users (default: 1)"
    )
    parser.add_argument("--cores", type=int, help="let servers and loads use only the first ones")
    parser.add_argument("--port", type=int, default=28000, help="first of three loopback ports")
    parser.add_argument("--json", type=pathlib.Path, help="also write all raw figures here")
    return parser.parse_args()


def chosen_rows(names: str) -> list[str]:
    rows = names.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        known = ", ".join(ROWS)
        raise argparse.ArgumentTypeError(f"expected some of {known}, got {', '.join(unknown)}")
    return rows


def chosen_forms(names: str) -> list[str]:
    try:
        return user_loads.chosen_forms(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def installed_peers() -> pathlib.Path | None:
    folder = os.environ.get("PEERS_DIR")
    return pathlib.Path(folder).expanduser().resolve() if folder else None


def chosen_systems(names: str, peers: pathlib.Path | None, port: int) -> list[servers.System]:
    known = {system.key: system for system in servers.known_systems(peers, port)}
    for name in names.split(","):
        if name not in known:
            print(f"skipping {name}: not installed (PEERS_DIR={peers})", file=sys.stderr)
    return [known[name] for name in names.split(",") if name in known]


def main() -> int:
    arguments = parse_arguments()
    tools = {tool for row in arguments.rows for tool in TOOLS.get(row, ())}
    if missing := [tool for tool in sorted(tools) if shutil.which(tool) is None]:
        print(
            f"needed for these rows: {', '.join(missing)}; see scripts/setup-tools", file=sys.stderr
        )
        return 1
    if arguments.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    # A shell starts background jobs with SIGINT ignored, and servers would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rounds: dict[str, list[list[Measurement]]] = {}
    for number in range(1, arguments.rounds + 1):
        for title, figures in one_round(number, arguments):
            rounds.setdefault(title, []).append(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(msgspec.to_builtins(rounds), indent=1) + "\n")
    results = {title: table.median_of_rounds(figures) for title, figures in rounds.items()}
    tables = [*COMPARISONS, *(module.TABLE for module in SIDE_BY_SIDE.values())]
    print(table.render_all(results, tables))
    return 0


def one_round(
    number: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, list[Measurement]]]:
    """Yields the figures of each system with its title."""
    peers, port, seconds = installed_peers(), arguments.port, arguments.seconds
    for row in user_loads.ROWS:
        if row in arguments.rows:
            print(f"round {number}: {row}", file=sys.stderr)
            chosen = arguments.forms, arguments.connections, arguments.instances
            yield from user_loads.measure(row, peers, port, seconds, *chosen).items()
    rows = [row for row in arguments.rows if row in loads.ROWS]
    systems = chosen_systems(arguments.systems, peers, port) if rows else []
    for system in systems:
        print(f"round {number}: {system.title}", file=sys.stderr)
        yield system.title, loads.measure(system, port, rows, seconds)
    for row, module in SIDE_BY_SIDE.items():
        if row in arguments.rows:
            print(f"round {number}: {row}", file=sys.stderr)
            yield from module.measure(peers, port, seconds).items()


if __name__ == "__main__":
    raise SystemExit(main())
