# SPDX-License-Identifier: Apache-2.0
"""Opening a connection within a time limit, which the system's own functions do not keep.

It takes no limit for looking up a name, and gives an address that swallows what is sent to it all
the time there is, although the host may have another one.
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

Address = tuple[Any, ...]  # as socket.getaddrinfo gives it
Addresses = list[Address]

LONGEST_LIMIT_S = 2_000_000.0  # 23 days; sockets, locks and polls refuse much longer ones
NEXT_ATTEMPT_S = 0.25  # between attempts at two addresses; what RFC 8305 recommends


def remaining(deadline: float) -> float:
    """Seconds to the deadline, as many as sockets take.

    Raises:
        TimeoutError: There are none.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return min(seconds, LONGEST_LIMIT_S)


def look_up(url: TritonUrl, tell: Callable[[Addresses | OSError], Any]) -> None:
    """Find the addresses of a host and tell them, or what went wrong; a name's from a thread."""
    try:
        addresses = _addresses_of(url, socket.AI_NUMERICHOST)  # asks nobody, so it takes no time
    except (OSError, UnicodeError):
        # A daemon: nothing ends a lookup, and it must not keep the program from ending.
        threading.Thread(
            target=_look_up_name, args=(url, tell), name="pytriton-look-up", daemon=True
        ).start()
    else:
        tell(addresses)


def connect(url: TritonUrl, deadline: float) -> socket.socket:
    """A connection to the first address of a host that takes one, in its system's order.

    Raises:
        OSError: None does, or the name is not known, or the time is up.
    """
    addresses = _wait_for_addresses(url, deadline)
    attempts = _Attempts(url)
    try:
        while addresses or attempts:
            if addresses:
                attempts.begin(addresses.pop(0))
            limit_s = remaining(deadline)
            connection = attempts.wait(min(limit_s, NEXT_ATTEMPT_S) if addresses else limit_s)
            if connection is not None:
                return connection
    finally:
        attempts.close()
    raise attempts.failure


class _Attempts:
    """Connections that are being opened, side by side."""

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
        except OSError as error:  # a family that this system does not have
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
        """The first one that is open; None where the limit passes, or some or all have failed."""
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


def _look_up_name(url: TritonUrl, tell: Callable[[Addresses | OSError], Any]) -> None:
    try:
        tell(_addresses_of(url))
    except OSError as error:
        tell(error)
    except UnicodeError as error:  # no name at all
        tell(socket.gaierror(socket.EAI_NONAME, str(error)))


def _addresses_of(url: TritonUrl, flags: int = 0) -> Addresses:
    found = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM, flags=flags)
    return list(found)
