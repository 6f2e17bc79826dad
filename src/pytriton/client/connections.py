# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections that any thread may use and that keep their timeouts.

A timeout applies to the whole exchange: look up the name, connect, send, wait and receive. The
functions of the system cannot do that: they have no timeout for DNS lookups, and spend the whole
time on an address that does not answer, even if the host has another one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientError
from pytriton.client.http_message import HttpAnswer, request_data
from pytriton.client.url import TritonUrl

Address = tuple[Any, ...]  # as returned by socket.getaddrinfo
Addresses = list[Address]

MAX_TIMEOUT_S = 2_000_000.0  # 23 days; sockets, locks and polls refuse much longer timeouts
NEXT_ATTEMPT_DELAY_S = 0.25  # before the next address is tried; recommended by RFC 8305

_RECEIVE_BYTES = 65536


def remaining(deadline: float) -> float:
    """Returns the seconds to the deadline, limited to what sockets accept.

    Raises:
        TimeoutError: The deadline has passed.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return min(seconds, MAX_TIMEOUT_S)


def look_up(url: TritonUrl, report: Callable[[Addresses | OSError], Any]) -> None:
    """Passes the addresses of a host, or the error, to a callback; for names, from a thread."""
    try:
        addresses = _addresses_of(url, socket.AI_NUMERICHOST)  # needs no DNS request
    except (OSError, UnicodeError):
        # A daemon, because a lookup cannot be cancelled and must not keep the program from ending.
        threading.Thread(
            target=_look_up_name, args=(url, report), name="pytriton-look-up", daemon=True
        ).start()
    else:
        report(addresses)


def connect(url: TritonUrl, deadline: float) -> socket.socket:
    """Connects to the first address of a host that accepts, in the order of the system.

    Raises:
        OSError: No address accepts, the name is unknown, or the deadline has passed.
    """
    addresses = _wait_for_addresses(url, deadline)
    attempts = _Attempts(url)
    try:
        while addresses or attempts:
            if addresses:
                attempts.begin(addresses.pop(0))
            limit_s = remaining(deadline)
            connection = attempts.wait(min(limit_s, NEXT_ATTEMPT_DELAY_S) if addresses else limit_s)
            if connection is not None:
                return connection
    finally:
        attempts.close()
    raise attempts.failure


class _Attempts:
    """Connections that are being opened in parallel."""

    def __init__(self, url: TritonUrl) -> None:
        self.failure: OSError = ConnectionError(f"expected an address of {url.hostname}, got none")
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.poll()

    def __bool__(self) -> bool:
        return bool(self._sockets)

    def begin(self, address: Address) -> None:
        family, kind, protocol, _, place = address
        try:
            attempt = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this system does not support
            self.failure = error
            return
        attempt.setblocking(False)
        problem = attempt.connect_ex(place)
        if problem in (0, errno.EINPROGRESS):
            self._sockets[attempt.fileno()] = attempt
            self._poll.register(attempt, select.POLLOUT)
        else:
            self._fail(attempt, problem)

    def wait(self, limit_s: float) -> socket.socket | None:
        """Returns the first open connection, or None after the timeout or if attempts failed."""
        ready = self._poll.poll(limit_s * 1000) if self._sockets else ()
        for descriptor, _ in ready:
            self._poll.unregister(descriptor)
            attempt = self._sockets.pop(descriptor)
            problem = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not problem:
                attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return attempt
            self._fail(attempt, problem)
        return None

    def close(self) -> None:
        for attempt in self._sockets.values():
            attempt.close()

    def _fail(self, attempt: socket.socket, problem: int) -> None:
        attempt.close()
        self.failure = OSError(problem, os.strerror(problem))


def _wait_for_addresses(url: TritonUrl, deadline: float) -> Addresses:
    answers: queue.SimpleQueue[Addresses | OSError] = queue.SimpleQueue()
    look_up(url, answers.put)
    try:
        answer = answers.get(timeout=remaining(deadline))
    except queue.Empty:
        raise TimeoutError(f"looking up the name {url.hostname} timed out") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _look_up_name(url: TritonUrl, report: Callable[[Addresses | OSError], Any]) -> None:
    try:
        report(_addresses_of(url))
    except OSError as error:
        report(error)
    except UnicodeError as error:  # not a valid name
        report(socket.gaierror(socket.EAI_NONAME, str(error)))


def _addresses_of(url: TritonUrl, flags: int = 0) -> Addresses:
    found = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM, flags=flags)
    return list(found)


def tls_failure(url: TritonUrl, error: ssl.SSLError) -> Exception:
    """Returns the error for a handshake that failed; one that cannot succeed later is our own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return PyTritonClientError(
            f"The certificate of {url.with_scheme} is not trusted: {error.verify_message}"
        )
    return ConnectionError(f"no encrypted connection to {url.with_scheme}: {error.reason or error}")


class TimeLimit:
    """A timeout for the calls of this thread in a block.

    A class, because a generator as context manager takes twice the time.
    """

    def __init__(self, limits: threading.local, timeout_s: float) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + timeout_s

    def __enter__(self) -> None:
        self._limits.deadline = self._deadline

    def __exit__(self, *_: object) -> None:
        del self._limits.deadline


class HttpConnections:
    """The connections to one server: each call uses an idle one or opens a new one.

    Args:
        url: the server.
        timeout_s: timeout of an exchange, unless `limited_to` sets another one.
        context: how connections are encrypted; None: they are not.
    """

    def __init__(
        self, url: TritonUrl, timeout_s: float, context: ssl.SSLContext | None = None
    ) -> None:
        self.connection_timeout: float = timeout_s
        self.network_timeout: float = timeout_s
        self._url = url
        self._context = context
        self._limits = threading.local()
        self._idle: deque[socket.socket] = deque()
        self._owner_pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._idle)} idle"
        return f"<HttpConnections to {self._url.without_scheme}, {state}>"

    @property
    def _connection_pool(self) -> HttpConnections:
        """Programs read the timeouts from this attribute, as `tritonclient` has it."""
        return self

    def limited_to(self, timeout_s: float) -> TimeLimit:
        """Returns a timeout for all calls of this thread inside the block together."""
        return TimeLimit(self._limits, timeout_s)

    def close(self) -> None:
        """Close idle connections; calls of other threads are not affected."""
        self._closed = True
        self._close_idle()

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, Any] | None = None,
        body: Sequence[bytes] = (),
    ) -> HttpAnswer:
        """Send a request, whose body comes in parts, and return the whole answer.

        Raises:
            OSError: There is no answer in time, or none at all.
            PyTritonClientValueError: A header cannot be sent.
            PyTritonClientClosedError: The connections are closed.
        """
        data = request_data(method, target, self._url.without_scheme, headers, body)
        deadline = (
            getattr(self._limits, "deadline", None) or time.monotonic() + self.network_timeout
        )
        connection = self._take() or self._connect(deadline)
        answer = HttpAnswer()
        try:
            try:
                _send(connection, data, deadline)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a body may answer before it has read all of it.
                _receive(connection, answer, deadline)
                answer.is_last = True
            else:
                _receive(connection, answer, deadline)
        except BaseException:
            connection.close()
            raise
        if answer.is_last:
            connection.close()
        else:
            self._idle.append(connection)
        if self._closed:  # by another thread in the meantime
            self._close_idle()
        return answer

    def _connect(self, deadline: float) -> socket.socket:
        connection = connect(self._url, deadline)
        if self._context is None:
            return connection
        try:
            connection.settimeout(remaining(deadline))
            return self._context.wrap_socket(connection, server_hostname=self._url.hostname)
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError):
                raise tls_failure(self._url, error) from error
            raise

    def _take(self) -> socket.socket | None:
        if self._closed:
            raise PyTritonClientClosedError(
                f"The connections to {self._url.with_scheme} are closed"
            )
        if self._owner_pid != os.getpid():
            # The parent process still uses them. Closing our copies does not close its connections.
            self._close_idle()
            self._owner_pid = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            # It has no open request, so it is readable only if the server has closed it.
            if not is_readable(connection):
                return connection
            connection.close()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


def _send(connection: socket.socket, data: Sequence[bytes], deadline: float) -> None:
    for each in data:
        connection.settimeout(remaining(deadline))
        connection.sendall(each)


def _receive(connection: socket.socket, answer: HttpAnswer, deadline: float) -> None:
    while not answer.is_complete:
        connection.settimeout(remaining(deadline))
        answer.feed(connection.recv(_RECEIVE_BYTES))
        rest = answer.rest()
        while rest:
            connection.settimeout(remaining(deadline))
            count = connection.recv_into(rest)
            if not count:
                raise ConnectionError(
                    f"the server closed the connection, {len(rest)} bytes before its answer's end"
                )
            rest = rest[count:]


def is_readable(connection: Any) -> bool:
    """Whether a socket, or asyncio's wrapper of one, has data or an end of file to read."""
    # poll, because select refuses the descriptors above 1023 of a busy process.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
