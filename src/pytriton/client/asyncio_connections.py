# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections for asyncio. A timeout is a cancellation, which closes the connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from pytriton.client.connections import (
    NEXT_ATTEMPT_DELAY_S,
    Address,
    Addresses,
    is_readable,
    look_up,
    tls_failure,
)
from pytriton.client.exceptions import PyTritonClientClosedError
from pytriton.client.http_message import HttpAnswer, described, request_data
from pytriton.client.url import TritonUrl

_IPV6_EXTRAS = 2  # flow information and scope
_MAX_CONNECTIONS = 100  # as in the sessions of aiohttp


class _Connection(asyncio.Protocol):
    """A connection and the response that it is receiving."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: HttpAnswer | None = None
        self._response: asyncio.Future[HttpAnswer]
        self._failure: Exception | None = None  # the error that ended it while idle
        self._is_lost = False

    @property
    def is_usable(self) -> bool:
        # The server may have closed it, but the event loop has not run since to notice that.
        return not (
            self._transport.is_closing() or is_readable(self._transport.get_extra_info("socket"))
        )

    def abort(self) -> None:
        if self._is_lost:
            # asyncio's transports fail here if the server ended its side before all was sent.
            return
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._transport.abort()

    async def exchange(self, data: Sequence[bytes]) -> HttpAnswer:
        if self._failure is not None:
            raise self._failure
        self._answer = HttpAnswer()
        self._response = asyncio.get_running_loop().create_future()
        for each in data:
            self._transport.write(each)
        return await self._response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def eof_received(self) -> None:
        self._feed(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        error = exc or ConnectionError("the connection was closed before an answer came")
        self._failure = self._failure or error
        self._finish(error)

    def _feed(self, data: bytes) -> None:
        if self._answer is None:
            # There is no open request: the server reports an error or uses another protocol.
            self._failure = ConnectionError(f"expected a question first, got {described(data)}")
            self.abort()
            return
        try:
            self._answer.feed(data)
        except ConnectionError as error:
            self._finish(error)
        else:
            if self._answer.is_complete:
                self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None or self._response.done():
            return  # the caller does not wait any more
        if error is None:
            self._response.set_result(answer)
        else:
            self._response.set_exception(error)


class AsyncioHttpConnections:
    """The connections to one server: each call uses an idle one or opens a new one.

    Args:
        url: the server.
        context: how connections are encrypted; None: they are not.
    """

    def __init__(self, url: TritonUrl, context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._context = context
        self._idle: list[_Connection] = []
        self._free_connections = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._end: AsyncIterator[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._idle)} idle"
        return f"<AsyncioHttpConnections to {self._url.without_scheme}, {state}>"

    async def close(self) -> None:
        """Close idle connections; calls in progress are not affected."""
        self._closed = True
        _abort_all(self._idle)

    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, Any] | None = None,
        body: Sequence[bytes] = (),
    ) -> HttpAnswer:
        """Like `HttpConnections.ask`; a timeout is up to the caller."""
        data = request_data(method, target, self._url.without_scheme, headers, body)
        async with self._free_connections:
            connection = self._take() or await self._connect()
            try:
                answer = await connection.exchange(data)
            except BaseException:
                connection.abort()
                raise
            if self._closed or answer.is_last:
                connection.abort()
            else:
                self._idle.append(connection)
        return answer

    def _take(self) -> _Connection | None:
        if self._closed:
            raise PyTritonClientClosedError(
                f"The connections to {self._url.with_scheme} are closed"
            )
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        if self._end is None:
            self._end = _abort_at_the_end(self._idle)
            await anext(self._end)
        try:
            return await _connect(self._url, self._context)
        except ssl.SSLError as error:
            raise tls_failure(self._url, error) from error


async def _connect(url: TritonUrl, context: ssl.SSLContext | None) -> _Connection:
    """Opens a connection to the first address that accepts one, like `connecting.connect`."""
    addresses = await _addresses_of(url)
    failure: BaseException = ConnectionError(f"expected an address of {url.hostname}, got none")
    attempts: set[asyncio.Task[_Connection]] = set()
    try:
        while addresses or attempts:
            if addresses:
                attempts.add(asyncio.create_task(_attempt(addresses.pop(0), url, context)))
            await asyncio.wait(
                attempts,
                timeout=NEXT_ATTEMPT_DELAY_S if addresses else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in [attempt for attempt in attempts if attempt.done()]:
                attempts.remove(attempt)
                problem = attempt.exception()
                if problem is None:
                    return attempt.result()
                failure = problem
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_abort_unused)
    raise failure


async def _attempt(address: Address, url: TritonUrl, context: ssl.SSLContext | None) -> _Connection:
    host, port, *more = address[-1]
    if len(more) == _IPV6_EXTRAS and more[1]:  # an address with a scope, such as a link-local one
        host = f"{host}%{more[1]}"
    name = None if context is None else url.hostname
    _, connection = await asyncio.get_running_loop().create_connection(
        _Connection, host, port, ssl=context, server_hostname=name
    )
    return connection


def _abort_unused(attempt: asyncio.Task[_Connection]) -> None:
    """Closes the connection of an attempt that succeeded while it was being cancelled."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort()


async def _abort_at_the_end(connections: list[_Connection]) -> AsyncIterator[None]:
    """Closes connections when the generator is deleted or the event loop is closed.

    Event loops finish open async generators, so a client that was not closed leaves no connection
    that would cause a ResourceWarning.
    """
    try:
        yield
    finally:
        _abort_all(connections)


def _abort_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().abort()


async def _addresses_of(url: TritonUrl) -> Addresses:
    """Looks up the addresses in a thread of our own.

    The end of the event loop would wait for a lookup in its own threads, which may hang.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Addresses] = loop.create_future()

    def settle(answer: Addresses | OSError) -> None:
        if found.done():
            return  # the caller does not wait any more
        if isinstance(answer, OSError):
            found.set_exception(answer)
        else:
            found.set_result(answer)

    def report(answer: Addresses | OSError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, answer)

    look_up(url, report)
    return await found


class AsyncioTimeLimit:
    """Ends the `with` block with `asyncio.TimeoutError` after the timeout.

    Args:
        limit_s: the timeout.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._has_expired = False

    def __enter__(self) -> None:
        self._task: Any = asyncio.current_task()
        self._cancelled_before = _count(self._task, "cancelling")
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._end)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if not self._has_expired:
            return
        cancelled = _count(self._task, "uncancel")
        if kind is asyncio.CancelledError and cancelled <= self._cancelled_before:
            raise asyncio.TimeoutError from error

    def _end(self) -> None:
        self._has_expired = True
        self._task.cancel()


def _count(task: Any, method: str) -> int:
    """Calls a method that returns the number of cancellations; 0 in Python 3.10, which has none."""
    count = getattr(task, method, None)
    return 0 if count is None else count()
