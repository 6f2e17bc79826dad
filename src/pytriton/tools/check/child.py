# SPDX-License-Identifier: Apache-2.0
"""Runs a module that serves, and ends it when the check that started it has ended.

Otherwise `python -m pytriton.tools.check.child PARENT MODULE ARGUMENTS` does the same as
`python -m MODULE ARGUMENTS`.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

_PERIOD_S = 0.5


def main(arguments: list[str]) -> None:
    """Run the module."""
    parent, module = int(arguments[0]), arguments[1]
    watch = threading.Thread(target=_end_with, args=(parent,), name="pytriton-check", daemon=True)
    watch.start()
    sys.argv = arguments[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    """End this process when its parent was killed."""
    while os.getppid() == parent:
        time.sleep(_PERIOD_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
