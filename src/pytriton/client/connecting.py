# SPDX-License-Identifier: Apache-2.0
"""Opens a connection within a timeout, which the functions of the system cannot do.

They have no timeout for DNS lookups, and spend the whole time on an address that does not answer,
even if the host has another one.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pytriton.client.url import TritonUrl

Address = tuple[Any, ...]  # as returned by socket.getaddrinfo
Addresses = list[Address]

MAX_TIMEOUT_S = 2_000_000.0  # 23 days; sockets, locks and polls refuse much longer timeouts
NEXT_ATTEMPT_DELAY_S = 0.25  # before the next address is tried; recommended by RFC 8305


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
