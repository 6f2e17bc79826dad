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

import msgspec

from benchmarks import loads, servers, table
from benchmarks.measurement import Measurement
from benchmarks.table import Comparison

SYSTEMS = "ours,pytriton,repository,triton"
COMPARISONS = [
    Comparison("Bound functions", servers.OURS, peers=(servers.NVIDIA_PYTRITON, servers.TRITON)),
    Comparison(
        "Model repositories: tritonserver against tritonserver",
        servers.OUR_TRITONSERVER,
        peers=(servers.TRITON,),
    ),
]

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
        default=",".join(loads.ROWS),
        help="which, comma-separated (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=1, help="the table shows the median of these")
    parser.add_argument("--port", type=int, default=28000, help="first of three loopback ports")
    parser.add_argument("--json", type=pathlib.Path, help="also write all raw figures here")
    return parser.parse_args()


def chosen_rows(names: str) -> list[str]:
    rows = names.split(",")
    if unknown := [row for row in rows if row not in loads.ROWS]:
        known = ", ".join(loads.ROWS)
        raise argparse.ArgumentTypeError(f"expected some of {known}, got {', '.join(unknown)}")
    return rows


def chosen_systems(names: str, port: int) -> list[servers.System]:
    folder = os.environ.get("PEERS_DIR")
    peers = pathlib.Path(folder).expanduser().resolve() if folder else None
    known = {system.key: system for system in servers.known_systems(peers, port)}
    for name in names.split(","):
        if name not in known:
            print(f"skipping {name}: not installed (PEERS_DIR={folder})", file=sys.stderr)
    return [known[name] for name in names.split(",") if name in known]


def main() -> int:
    arguments = parse_arguments()
    tools = {tool for row in arguments.rows for tool in loads.TOOLS.get(row, ())}
    if missing := [tool for tool in sorted(tools) if shutil.which(tool) is None]:
        print(
            f"needed for these rows: {', '.join(missing)}; see scripts/setup-tools", file=sys.stderr
        )
        return 1
    # A shell starts background jobs with SIGINT ignored, and servers would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    systems = chosen_systems(arguments.systems, arguments.port)
    rounds: dict[str, list[list[Measurement]]] = {system.title: [] for system in systems}
    for number in range(1, arguments.rounds + 1):
        for system in systems:
            print(f"round {number}: {system.title}", file=sys.stderr)
            figures = loads.measure(system, arguments.port, arguments.rows, arguments.seconds)
            rounds[system.title].append(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(msgspec.to_builtins(rounds), indent=1) + "\n")
    results = {title: table.median_of_rounds(figures) for title, figures in rounds.items()}
    print(table.render_all(results, COMPARISONS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
