# SPDX-License-Identifier: Apache-2.0
"""Threads that a process can do without for a while. Workers import it, so it needs no asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(target: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a thread that ends with the process; returns None if the system has none left now."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # as `threading` reports it
        return None
    return thread
