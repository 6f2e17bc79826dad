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

Addresses = list[tuple[Any, ...]]  # as socket.getaddrinfo gives them

NEXT_ATTEMPT_S = 0.25  # between attempts at two addresses; what RFC 8305 recommends


def remaining(deadline: float) -> float:
    """Seconds to the deadline.

    Raises:
        TimeoutError: There are none.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


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
    failure: OSError = ConnectionError(f"expected an address of {url.hostname}, got none")
    poll = select.poll()
    attempts: dict[int, socket.socket] = {}
    try:
        while addresses or attempts:
            if addresses:
                attempt = _begin(addresses.pop(0))
                if isinstance(attempt, OSError):
                    failure = attempt
                    continue
                attempts[attempt.fileno()] = attempt
                poll.register(attempt, select.POLLOUT)
            pause_s = remaining(deadline)
            if addresses:
                pause_s = min(pause_s, NEXT_ATTEMPT_S)
            for descriptor, _ in poll.poll(pause_s * 1000):
                poll.unregister(descriptor)
                attempt = attempts.pop(descriptor)
                problem = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not problem:
                    attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return attempt
                attempt.close()
                failure = OSError(problem, os.strerror(problem))
    finally:
        for attempt in attempts.values():
            attempt.close()
    raise failure


def _begin(address: tuple[Any, ...]) -> socket.socket | OSError:
    family, kind, protocol, _, place = address
    try:
        attempt = socket.socket(family, kind, protocol)
    except OSError as error:  # a family that this system does not have
        return error
    attempt.setblocking(False)
    problem = attempt.connect_ex(place)
    if problem in (0, errno.EINPROGRESS):
        return attempt
    attempt.close()
    return OSError(problem, os.strerror(problem))


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
