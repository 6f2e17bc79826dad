# SPDX-License-Identifier: Apache-2.0
"""The `tritonserver` command: serves the models of repositories until a signal ends it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytriton.server.command.run import run_command
from pytriton.server.serving import prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the command line without the program's name; by default that of this process.

    Returns:
        The exit code: 0 after an orderly shutdown, else 1.
    """
    return run_command(sys.argv[1:] if arguments is None else arguments, prepare)


if __name__ == "__main__":
    sys.exit(main())
