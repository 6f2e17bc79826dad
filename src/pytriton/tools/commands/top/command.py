# SPDX-License-Identifier: Apache-2.0
"""`pytriton top`: what the models of a server do at this moment."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence

from pytriton.client.kserve.errors import AskError
from pytriton.tools.commands.kserve.options import ServerConnection, add_server_options, connect
from pytriton.tools.commands.top.rows import row_document
from pytriton.tools.commands.top.samples import cluster_document
from pytriton.tools.commands.top.source import ReadingThread, ServerReader
from pytriton.tools.commands.top.terminal import take, watch
from pytriton.tools.commands.top.view import Shown, node_lines, table_lines
from pytriton.utils.option_parser import OptionParser

_TIMEOUT_S = 10.0  # a server that hangs is to be seen soon


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run the command.

    Args:
        arguments: the command line after `top`.
        show: prints the table of `--once`.
        complain: prints why there is none.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(list(arguments))
    is_live = not (options.once or options.json)
    if is_live and not (sys.stdin.isatty() and sys.stdout.isatty()):
        complain("The live view needs a terminal; --once prints a table, --json a document.")
        return 2
    try:
        connection = connect(options)
        with contextlib.closing(connection):
            if is_live:
                shown = Shown(str(connection.address), interval_s=options.interval)
                watch(ReadingThread(ServerReader(connection), options.interval), shown)
                return 0
            shown = _two_samples(connection, options.interval)
    except AskError as error:
        complain(str(error))
        return 1
    if options.json:
        show(json.dumps(_document(shown), indent=2))
    else:
        show("\n".join(table_lines(shown)))
        nodes = node_lines(shown.rows, shown.cluster)
        if nodes:
            show("\n".join(["", *nodes]))
        if shown.note:
            complain(shown.note)
    return 0


def _two_samples(connection: ServerConnection, interval_s: float) -> Shown:
    shown = Shown(str(connection.address), interval_s=interval_s)
    source = ServerReader(connection)
    first = source.read()
    take(shown, None, first)
    time.sleep(interval_s)
    take(shown, first.sample, source.read())
    return shown


def _document(shown: Shown) -> dict[str, object]:
    sample = shown.sample
    assert sample is not None
    return {
        "server": shown.address,
        "interval_s": shown.interval_s,
        "uptime_s": sample.uptime_s,
        "cpu": sample.cpu,
        "memory_used": sample.memory_used,
        "memory_total": sample.memory_total,
        "server_memory": sample.server_memory,
        "cluster": cluster_document(shown.cluster) if shown.cluster else None,
        "models": [row_document(row) for row in shown.rows],
    }


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton top",
        description="Show what the models of a server do: states, requests a second, queues, batch "
        "sizes and latencies, from its metrics. ? shows the keys.",
        epilog="Servers without histograms of latencies, such as Triton, have averages. Where the "
        "metrics are out of reach, statistics are read, which may need a token.",
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        default=2.0,
        metavar="SECONDS",
        help="from one look to the next (2)",
    )
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--json", action="store_true", help="print one JSON document and end")
    add_server_options(parser)
    parser.set_defaults(timeout=_TIMEOUT_S)
    return parser


def _interval(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected 0.1 to 3600 seconds, got {text}")
    return value
