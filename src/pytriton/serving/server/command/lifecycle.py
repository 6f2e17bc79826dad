# SPDX-License-Identifier: Apache-2.0
"""The life of a server as the `tritonserver` command sees it: its interface, and its shutdown.

The shutdown handles the signals, and waits for requests within the exit timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.server.options.server_options import ServerOptions

logger = logging.getLogger(__name__)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Some programs send a signal to the process and then to its group; both count as one signal.
_SAME_SIGNAL_S = 0.5
_TERMINAL = "/dev/tty"  # that of this process, if it has one


class LoadProgress(NamedTuple):
    """The progress of loading models."""

    finished: int  # loaded or failed
    total: int
    loading: Sequence[str]  # names of those that are being loaded


class OpenPorts(NamedTuple):
    """The ports for clients; 0: the protocol is not served."""

    http: int
    grpc: int
    metrics: int
    sagemaker: int = 0
    vertex_ai: int = 0


class LoadedBackend(NamedTuple):
    """A backend, which runs models."""

    name: str
    path: str


class Remaining(NamedTuple):
    """Connections and models that a stopping server still waits for."""

    http_connections: int = 0
    grpc_connections: int = 0
    busy_models: int = 0  # versions with requests in flight
    live_models: int = 0  # versions whose instances have not stopped


class ServerLifecycle(Protocol):
    """A server, from loading its models to its shutdown. It is used on the event loop's thread."""

    async def load(self, report: Callable[[LoadProgress], None]) -> None:
        """Load the models that the control mode selects; raises ServerError if one fails.

        The server can be used after an error, too. After a cancelled load, call `stop`.
        """

    async def open_ports(self) -> OpenPorts:
        """Listen for clients; raises UnavailableError with the service that could not start."""

    def index(self) -> Sequence[IndexEntry]:
        """Returns every model version that should serve, with its state."""

    def backends(self) -> Sequence[LoadedBackend]:
        """Returns the loaded backends."""

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but continue to serve."""

    def reload_certificates(self) -> None:
        """Read the files of encrypted ports again, for clients that connect from now on."""

    def let_clients_leave(self) -> None:
        """Serve on, but ask all clients to use other connections."""

    def remaining(self) -> Remaining:
        """Returns the connections and models that have not ended yet."""

    async def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, finish those in flight, stop everything; True if all was in time."""


Build = Callable[["ServerOptions", "asyncio.AbstractEventLoop"], Awaitable[ServerLifecycle]]


class Exit(enum.Enum):
    """How the server's process ends."""

    CLEAN = 0
    FAILED = 1
    AT_ONCE = 2  # with code 1, without waiting for anything


class ExitSignals:
    """Handles SIGINT and SIGTERM: the first one exits in order, the second one at once.

    They are written to standard output as Triton does, or to the log if `is_logged` is set.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_logged: bool = False,
        same_signal_s: float = _SAME_SIGNAL_S,
    ) -> None:
        self._loop = loop
        self._is_logged = is_logged
        self._same_signal_s = same_signal_s
        self._second_from_s = 0.0  # on the loop's clock
        self.first: asyncio.Future[None] = loop.create_future()
        self.second: asyncio.Future[None] = loop.create_future()

    def on_signal(self, number: int) -> None:
        """Handle and tell one signal."""
        if self._is_logged:
            logger.info("Signal (%d) received.", number)
        else:
            with contextlib.suppress(OSError):  # the reader of the output may have ended
                print(f"Signal ({number}) received.", flush=True)  # noqa: T201  as Triton does
        if not self.first.done():
            self._second_from_s = self._loop.time() + self._same_signal_s
            self.first.set_result(None)
        elif not self.second.done() and self._loop.time() >= self._second_from_s:
            self.second.set_result(None)


@contextlib.contextmanager
def exit_signals(
    loop: asyncio.AbstractEventLoop, *, is_logged: bool = False
) -> Iterator[ExitSignals]:
    """Handle the signals while the context is entered."""
    signals = ExitSignals(loop, is_logged=is_logged)
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.on_signal, number)
    try:
        yield signals
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def reload_signal(
    loop: asyncio.AbstractEventLoop, reload: Callable[[], None], hang_up: Callable[[int], None]
) -> Iterator[None]:
    """Handle SIGHUP while the context is entered: read certificates again.

    The system sends it also when the terminal of a server is closed, which ends it: `hang_up` is
    called then, unless it was to be ignored, as after `nohup`.
    """
    number = signal.SIGHUP
    ends = signal.getsignal(number) is not signal.SIG_IGN and _has_terminal()

    def on_signal() -> None:
        if ends and not _has_terminal():
            hang_up(number)
        else:
            reload()

    loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def _has_terminal() -> bool:
    """Returns whether this process has a terminal that is not closed."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def shut_down(
    serving: ServerLifecycle, options: ServerOptions, signals: ExitSignals, second_s: float = 1.0
) -> Exit:
    """Shut a server down in order, within its exit timeout; returns how the process has to end.

    The second signal ends the waiting. Tests use shorter seconds.
    """
    serving.begin_exit()
    if options.exit_grace_s:
        logger.info("Not ready any more, but serving for %g seconds.", options.exit_grace_s)
        await _serve_on(serving, options.exit_grace_s * second_s, signals)
        if signals.second.done():
            return Exit.AT_ONCE
    logger.info("Waiting for in-flight requests to complete.")
    stop = asyncio.ensure_future(serving.stop(options.exit_timeout_s * second_s))
    ends: set[asyncio.Future[Any]] = {stop, signals.second}
    # In the last second, after the timeout, requests that are not finished get their errors.
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


async def _serve_on(serving: ServerLifecycle, grace_s: float, signals: ExitSignals) -> None:
    """Serve for some time, until the second signal.

    In the first half, load balancers notice that the server is not ready. Then clients are asked to
    give up the connections that they keep: where these are opened anew, they lead to other servers.
    """
    await asyncio.wait({signals.second}, timeout=grace_s / 2)
    if not signals.second.done():
        serving.let_clients_leave()
        await asyncio.wait({signals.second}, timeout=grace_s / 2)


def exit_lines(left_s: int, remaining: Remaining) -> Iterator[str]:
    """Yields the log lines about what is still waited for, `left_s` before the timeout."""
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
