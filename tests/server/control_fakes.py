# SPDX-License-Identifier: Apache-2.0
"""A control whose work ends when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pytriton.base.errors import ServerError
from pytriton.serving.engine.client import IndexEntry


class FakeControl:
    """Knows what it was asked for; loads and unloads end with `finish`, or fail."""

    def __init__(self, *entries: IndexEntry) -> None:
        self.entries = list(entries)
        self.calls: list[tuple[object, ...]] = []
        self.ended: list[str] = []
        self.refusal: Exception | None = None
        self.patterns: object = ...  # of the sender of the last load
        self.is_serving = True
        self._gate = asyncio.Event()

    def finish(self, error: ServerError | Exception | None = None) -> None:
        """End what is under way."""
        self.refusal = error
        self._gate.set()

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        return [entry for entry in self.entries if entry.state == "READY" or not ready]

    async def load(
        self, name: str, config: str | None, files: Mapping[str, bytes], patterns: object = None
    ) -> None:
        self.calls.append(("load", name, config, dict(files)))
        self.patterns = patterns
        await self._end(name)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self.calls.append(("unload", name, unload_dependents))
        await self._end(name)

    def is_ready(self) -> bool:
        return self.is_serving

    async def _end(self, name: str) -> None:
        await self._gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.ended.append(name)


ENTRIES = (
    IndexEntry("broken", "1", "UNAVAILABLE", "Internal: no"),
    IndexEntry("double", "1", "READY"),
    IndexEntry("never"),
)
