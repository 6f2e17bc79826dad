# SPDX-License-Identifier: Apache-2.0
"""The end of a server: the signals that ask for it, and what is waited for until when."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.server.command.serving_protocol import Remaining, Serving
    from pytriton.server.options.server_options import ServerOptions

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Some send a signal to the process and again to its group: only a later one is a second one.
_SAME_SIGNAL_S = 0.5


class Exit(enum.Enum):
    """How the server's process ends."""

    CLEAN = 0
    FAILED = 1
    AT_ONCE = 2  # with code 1, and without waiting for anything


class ExitSignals:
    """Hears SIGINT and SIGTERM: the first asks for an end in order, the second for one at once."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, same_signal_s: float = _SAME_SIGNAL_S
    ) -> None:
        self._loop = loop
        self._same_signal_s = same_signal_s
        self._second_from_s = 0.0  # on the loop's clock
        self.first: asyncio.Future[None] = loop.create_future()
        self.second: asyncio.Future[None] = loop.create_future()

    def on_signal(self, number: int) -> None:
        """Take one signal, and say so."""
        with contextlib.suppress(OSError):  # who read the output may be gone, as `head` is
            print(f"Signal ({number}) received.", flush=True)  # noqa: T201  as Triton does
        if not self.first.done():
            self._second_from_s = self._loop.time() + self._same_signal_s
            self.first.set_result(None)
        elif not self.second.done() and self._loop.time() >= self._second_from_s:
            self.second.set_result(None)


@contextlib.contextmanager
def exit_signals(loop: asyncio.AbstractEventLoop) -> Iterator[ExitSignals]:
    """Hear the signals as long as the context lasts."""
    signals = ExitSignals(loop)
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.on_signal, number)
    try:
        yield signals
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def shut_down(
    serving: Serving, options: ServerOptions, signals: ExitSignals, second_s: float = 1.0
) -> Exit:
    """End a server in order, within its time to exit.

    Args:
        serving: the server.
        options: its settings.
        signals: a second one cuts this short.
        second_s: how long a second is; tests have shorter ones.

    Returns:
        How the process has to end.
    """
    serving.begin_exit()
    if options.exit_grace_s:
        logger.info("Not ready any more, but serving for %g seconds.", options.exit_grace_s)
        await asyncio.wait({signals.second}, timeout=options.exit_grace_s * second_s)
        if signals.second.done():
            return Exit.AT_ONCE
    logger.info("Waiting for in-flight requests to complete.")
    stop = asyncio.ensure_future(serving.stop(options.exit_timeout_s * second_s))
    ends: set[asyncio.Future[Any]] = {stop, signals.second}
    # In the last of these seconds time is over, and requests that were given up hear of it.
    for left_s in range(options.exit_timeout_s, -1, -1):
        for line in exit_lines(left_s, serving.remaining()):
            logger.info("%s", line)
        await asyncio.wait(ends, timeout=second_s, return_when=asyncio.FIRST_COMPLETED)
        if signals.second.done():
            return Exit.AT_ONCE
        if stop.done():
            break
    if stop.done() and stop.result():
        return Exit.CLEAN
    logger.error("Exit timeout expired. Exiting immediately.")
    return Exit.AT_ONCE


def exit_lines(left_s: int, remaining: Remaining) -> Iterator[str]:
    """What to say of the things that are waited for, this many seconds before time is over."""
    found = f"Timeout {left_s}: Found"
    if remaining.http_connections:
        yield f"{found} {remaining.http_connections} HTTP service connections"
    if remaining.grpc_connections:
        yield (
            f"{found} {remaining.grpc_connections} gRPC service connections and inference handlers"
        )
    if remaining.busy_models:
        yield f"{found} {remaining.busy_models} model versions that have in-flight inferences"
    else:
        yield f"{found} {remaining.live_models} live models and 0 in-flight non-inference requests"
