# SPDX-License-Identifier: Apache-2.0
"""What every process that serves sets up for itself: its event loop and its memory."""

from __future__ import annotations

import asyncio
import gc


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop of the platform."""
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def freeze_memory() -> None:
    """Search what was imported and built so far for garbage now, and never again."""
    gc.collect()
    gc.freeze()
