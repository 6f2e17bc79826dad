# SPDX-License-Identifier: Apache-2.0
"""What a server does with copies of requests; its code is imported when it is first used."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from pytriton.serving.engine.observers import Observers
    from pytriton.serving.server.metrics.exposition import SampleFamily
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.recording import recording, shadow, tap
    from pytriton.serving.server.recording.recording import Recordings
    from pytriton.serving.server.recording.shadow import Shadow
    from pytriton.serving.server.recording.tap import EngineTap
else:
    recording = LazyModule("pytriton.serving.server.recording.recording")
    shadow = LazyModule("pytriton.serving.server.recording.shadow")
    tap = LazyModule("pytriton.serving.server.recording.tap")


class RequestCopies:
    """The recordings of a server, and its shadow if it has one."""

    def __init__(
        self,
        observers: Observers,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._observers = observers
        self._options = options
        self._loop = loop
        self._recordings: Recordings | None = None
        self._shadow: Shadow | None = None

    @functools.cached_property
    def _tap(self) -> EngineTap:
        return tap.EngineTap(self._observers)

    def start(self) -> None:
        """Send requests to the shadow as well, if the options name one."""
        if self._options.shadow.url:
            self._shadow = shadow.Shadow(self._options.shadow, self._tap)
            self._shadow.start()

    async def record(self, action: str, body: bytes) -> Any:
        """Do what a client asks for; see `Recordings.do`."""
        if self._recordings is None:
            self._recordings = recording.Recordings(self._tap, self._options.id, self._loop)
        return await self._recordings.do(action, body)

    def families(self) -> Iterator[SampleFamily]:
        """Yields the metrics of what is used."""
        for part in (self._recordings, self._shadow):
            if part is not None:
                yield from part.families()

    def close(self) -> None:
        """End everything; the server stops."""
        for part in (self._recordings, self._shadow):
            if part is not None:
                part.close()
