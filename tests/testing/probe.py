# SPDX-License-Identifier: Apache-2.0
"""A program that prints what its process is like, or ends in several ways."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

# Lines of /proc/self/status that differ from process to process, or say what it has done so far.
_OWN = (
    *("Tgid", "Pid", "PPid", "NStgid", "NSpid", "Vm", "Rss", "Hugetlb", "SigQ", "FDSize", "Name"),
    *("voluntary", "nonvoluntary", "State"),
)


def show() -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    links = {each.name: each for each in Path("/proc/self/fd").iterdir()}
    open_ones = {name: str(path.readlink()) for name, path in links.items() if path.is_symlink()}
    # The folder that was just listed is none of them.
    files = {name: file for name, file in open_ones.items() if not file.startswith("/proc/")}
    seen = {
        "argv": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "main": sys.modules["__main__"].__spec__ is None,
        "status": [line for line in status if not line.startswith(_OWN)],
        "limits": Path("/proc/self/limits").read_text(),
        "handlers": {
            number.name: str(signal.getsignal(number))
            for number in signal.valid_signals()
            if isinstance(number, signal.Signals)
        },
        "files": sorted(files.items()),
        "inheritable": [os.get_inheritable(int(name)) for name in sorted(files)],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": sorted(os.sched_getaffinity(0)),
        "core_limit": resource.getrlimit(resource.RLIMIT_CORE),
        "group_of_leader": os.getpgrp() == os.getpid(),
        "threads": threading.active_count(),
        "stream": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering],
        "collects": [gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold()],
        "modules": sorted(name for name in sys.modules if name.startswith("pytriton")),
    }
    sys.stdout.write(json.dumps(seen))


def end() -> None:
    """End as the first argument says, after a line of input."""
    sys.stdin.readline()
    if sys.argv[1] == "raise":
        raise ValueError("as it should")
    sys.exit(int(sys.argv[1]))
