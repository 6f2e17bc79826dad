# SPDX-License-Identifier: Apache-2.0
"""Runs a worker that was not forked by the zygote, possibly with another Python than the server's.

Run as `python -m pytriton.runtime.worker_process`, or as a script if that Python has no pytriton.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Run a model over inherited sockets, or over a connection to the server."""
    options = _parse(arguments)
    if not __package__:
        # Import from the folder that contains pytriton, not from the folder of this file.
        if not getattr(sys.flags, "safe_path", False):
            del sys.path[0]
        sys.path.append(str(Path(__file__).resolve().parents[3]))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if options.fallback_version in (None, version):
        sys.path.extend(path for path in options.fallback_path if path not in sys.path)
    try:
        # Not at the top of the file, because only now the package can be found.
        process = importlib.import_module("pytriton.runtime.worker_process.process")
    except ImportError as error:
        sys.exit(_describe(error))
    if __package__:
        process.remove_first_path()
    if options.connect:
        _run_remote(options)
    else:
        process.run_worker(options.channel_fd, options.fork_fd, options.title, {})


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pytriton.runtime.worker_process")
    parser.add_argument("--channel-fd", type=int, metavar="N", help="an inherited socket")
    parser.add_argument("--fork-fd", type=int, metavar="N", help="an inherited socket")
    parser.add_argument("--title", default="pytriton worker")
    parser.add_argument(
        "--fallback-path", action="append", default=[], help="searched last for modules; repeatable"
    )
    parser.add_argument(
        "--fallback-version", metavar="X.Y", help="of Python, for which these paths are"
    )
    remote = parser.add_argument_group("in place of inherited sockets")
    remote.add_argument(
        "--connect", action="append", default=[], metavar="ADDRESS", help="tried in turn"
    )
    remote.add_argument("--start", metavar="NAME", help="the start that the server expects")
    remote.add_argument("--node-id", default="", metavar="ID")
    remote.add_argument("--rank", type=int, default=0, metavar="N", help="of this process's group")
    remote.add_argument("--version", metavar="V", help="of pytriton, if it is not installed here")
    options = parser.parse_args(arguments)
    if options.connect and options.start is None:
        parser.error("--connect needs --start")
    if not options.connect and (options.channel_fd is None or options.fork_fd is None):
        parser.error("expected --channel-fd and --fork-fd, or --connect")
    return options


def _run_remote(options: argparse.Namespace) -> None:
    remote = importlib.import_module("pytriton.runtime.worker_process.remote")
    remote.run_remote_worker(
        remote.RemoteOptions(
            addresses=tuple(options.connect),
            start=options.start,
            node_id=options.node_id,
            rank=options.rank,
            title=options.title,
            version=options.version,
        )
    )


def _describe(error: ImportError) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"The Python {version} at {sys.executable} cannot run models: a worker needs the packages"
        f" numpy and msgspec, and could not import {error.name or 'one of them'}: {error}"
    )


if __name__ == "__main__":
    main()
