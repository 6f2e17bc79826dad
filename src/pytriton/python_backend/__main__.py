# SPDX-License-Identifier: Apache-2.0
"""Runs a worker that was not forked by the zygote, possibly with another Python than the server's.

Run as `python -m pytriton.python_backend`, or as a script if that Python has no pytriton.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Run a model over inherited sockets."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.python_backend")
    parser.add_argument("--channel-fd", type=int, required=True, metavar="N")
    parser.add_argument("--fork-fd", type=int, required=True, metavar="N")
    parser.add_argument("--title", default="pytriton worker")
    parser.add_argument(
        "--fallback-path", action="append", default=[], help="searched last for modules; repeatable"
    )
    options = parser.parse_args(arguments)
    if not __package__:
        # Import from the folder that contains pytriton, not from the folder of this file.
        if not getattr(sys.flags, "safe_path", False):
            del sys.path[0]
        sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.path.extend(path for path in options.fallback_path if path not in sys.path)
    try:
        # Not at the top of the file, because only now the package can be found.
        process = importlib.import_module("pytriton.python_backend.process")
    except ImportError as error:
        sys.exit(_describe(error))
    if __package__:
        process.remove_first_path()
    process.run_worker(options.channel_fd, options.fork_fd, options.title, {})


def _describe(error: ImportError) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"The Python {version} at {sys.executable} cannot run models: a worker needs the packages"
        f" numpy and msgspec, and could not import {error.name or 'one of them'}: {error}"
    )


if __name__ == "__main__":
    main()
