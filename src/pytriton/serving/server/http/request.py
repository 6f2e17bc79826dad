# SPDX-License-Identifier: Apache-2.0
"""A request, whichever version of HTTP it came with: its head, which may be refused, and its body.

The reader of HTTP/1.1 and the connections of HTTP/2 make them of what they receive.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pytriton.base.messages import RequestPath
from pytriton.protocol.http2 import IncompleteInput
from pytriton.runtime.transport.arena import forget
from pytriton.serving.server.api.status import HTTP_RESTRICTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.access.control import Grant
    from pytriton.serving.server.api.origins import OriginPolicy
    from pytriton.serving.server.api.refusals import Refusal
    from pytriton.serving.server.api.request_memory import MemoryLease, RequestMemory
    from pytriton.serving.server.http.columns import BodyLayout, FormTable
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.region_forms import RegionForms
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.options.server_options import ClientLimits

LARGE_BODY_BYTES = 64 << 10
SIZE_HINT = "Use --http-max-input-size to increase the limit."  # with it, size refusals end
# Requests without tensors and files need no more.
SMALL_BODY = f"expected a body of at most {LARGE_BODY_BYTES} bytes for this request, got more"
HEADER_OVERHEAD_BYTES = 32  # added for each header, as in HTTP/2, which limits their number, too
# Of a request that comes in parts, more than this counts in the budget for memory. A connection
# itself takes more, and so requests whose head and small body come in two reads are not counted.
UNCOUNTED_PART_BYTES = 4096
_UNKNOWN_LENGTH = 1 << 62

# The endpoints for which the length of the JSON in front of binary tensors has no meaning.
_JSON_ONLY = (b"/generate", b"/generate_stream")

# The characters of names, addresses and ports, which RFC 9110, 7.2 allows in a Host header.
_HOST = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*")


class Resolved:
    """The handler and the route of allowed requests with one head."""

    __slots__ = ("forms", "handler", "layout", "principal", "route")

    def __init__(
        self,
        handler: Callable[..., HttpExchange | None],
        route: Route,
        layout: BodyLayout | RequestPath = RequestPath.HEADERS,
    ) -> None:
        self.handler = handler
        self.route = route
        # How the body is read, which is so if there are forms; otherwise a path: why such requests
        # always take the ordinary way.
        self.layout: Any = layout
        self.forms: FormTable | RegionForms | None = None  # those that were learned for the model
        self.principal = ""  # who sends such requests; empty: nobody that the server knows


class RequestHead(msgspec.Struct):
    """The request line and the headers; requests that begin with the same bytes may share it."""

    method: bytes = b""
    target: bytes = b""
    headers: dict[bytes, bytes] = {}  # by lower-case name; repeated ones are joined with commas
    header_list: list[tuple[bytes, bytes]] = []  # as received
    keep_alive: bool = True
    is_http_10: bool = False
    content_length: int = 0
    # Kept by who answers, as it is the same for all requests with this head: how, ...
    resolved: Resolved | None = None
    # ... what a request to a port of a cloud provider asks for (a head for the HTTP port, or an
    # endpoint that only the provider has), ...
    translated: RequestHead | Route | Refusal | None = None
    grant: Grant | None = None  # ... and who sends them, if there is a policy


class HttpRequest(msgspec.Struct, eq=False, gc=False):
    """A complete request."""

    head: RequestHead
    body: Any = b""  # a buffer
    began_ns: int = 0  # time.monotonic_ns() when its first bytes came; 0 if nobody asks for it


def private_memory(size: int) -> memoryview:
    """Allocate memory of this process; it uses no pages until data is received."""
    return np.empty(size, np.uint8).data


class BodyBuffer:
    """A body that comes in parts, and what it takes of the budget for memory.

    It is kept in memory of its announced size, or in a buffer that grows with the parts. What
    counts, and `use_memory`, raise UnavailableError if there is no room.
    """

    __slots__ = ("_budget", "_counted", "_data", "_lease", "memory", "size")

    def __init__(self, budget: RequestMemory) -> None:
        self.size = 0  # what is there of the body
        self.memory: memoryview | None = None  # for all of it, if it is large
        self._budget = budget
        self._counted = 0  # received bytes, of the head, too, if that came in parts
        self._lease: MemoryLease | None = None  # unless it is small and came at once
        self._data: bytes | bytearray = b""

    @property
    def held_bytes(self) -> int:
        """How much of the budget it takes."""
        return 0 if self._lease is None else self._lease.nbytes

    @property
    def rest(self) -> memoryview | None:
        """The memory for the data that follows, if that has a place."""
        return None if self.memory is None else self.memory[self.size :]

    def count(self, nbytes: int, *, waits: bool = False) -> None:
        """Count received bytes; few are free, unless more `waits` for the client."""
        self._counted += nbytes
        if self._lease is not None:
            self._lease.grow(nbytes)
        elif waits or self._counted > UNCOUNTED_PART_BYTES:
            self.count_anew(self._counted)

    def count_anew(self, nbytes: int) -> None:
        """Count this instead of what was counted before."""
        self._lease = self._budget.lease()
        self._lease.grow(nbytes)

    def use_memory(self, memory: memoryview) -> None:
        """Keep the body in memory that is as large as it is announced."""
        self._lease = self._budget.lease()
        self.memory = self._lease.attach(memory)
        self._lease.grow(self.size)
        self.memory[: self.size] = self._data
        self._data = b""

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Add received data."""
        if self.memory is not None:
            self.memory[self.size : self.size + len(data)] = data
        elif not self._data:
            self._data = bytes(data)
        else:
            # One growing buffer: thousands of small objects would need many times their size.
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += data
        self.size += len(data)

    def take(self, uncounted_bytes: int) -> Buffer:
        """Returns the whole body, which stays counted while it is used, if it is larger than that.

        The buffer is as new.
        """
        body: Buffer = self._data if self.memory is None else self.memory
        if self.memory is None and self._lease is not None and self.size > uncounted_bytes:
            body = self._lease.attach(body)
        self.clear()
        return body

    def clear(self) -> None:
        self.memory = self._lease = None
        self._data = b""
        self.size = self._counted = 0

    def drop(self) -> None:
        """Give the memory of a body back that will not be complete."""
        if self.memory is not None:
            forget(self.memory)
        self.clear()


def incomplete_body(head: RequestHead, size: int, serial: int = 0) -> IncompleteInput:
    """Returns what is missing of a body of which there is so much, for slow clients' timeouts."""
    whole = head.content_length or _UNKNOWN_LENGTH
    return IncompleteInput("a request body", serial, whole - size)


def head_refusal(
    head: RequestHead, version: str, limits: ClientLimits, origins: OriginPolicy
) -> tuple[int, str] | None:
    """Returns the status and the reason why a head is refused; None if it is not."""
    refusal = _syntax_or_size_refusal(head, version, limits) or _host_refusal(head)
    if refusal is None:
        problem = origins.refusal(head.method, head.headers.get)
        if problem is not None:
            origins.refused_count += 1
            refusal = HTTP_RESTRICTED, problem
    return refusal


def _syntax_or_size_refusal(
    head: RequestHead, version: str, limits: ClientLimits
) -> tuple[int, str] | None:
    """Returns why RFC 9112 or a limit forbids a well-formed head; None if they do not."""
    coding = head.headers.get(b"transfer-encoding", b"chunked").lower()
    expectation = head.headers.get(b"expect", b"100-continue").lower()
    if version not in ("1.0", "1.1"):
        return 505, f"expected HTTP version 1.0 or 1.1, got {version}"
    if head.method == b"CONNECT":
        return 501, "this server is no proxy: CONNECT is not supported"
    if head.is_http_10 and b"transfer-encoding" in head.headers:
        return 400, "expected Content-Length in a request of HTTP 1.0, got Transfer-Encoding"
    if coding != b"chunked":  # unless it is the last coding, the end of the body is unknown
        is_framed = coding.rpartition(b",")[2].strip() == b"chunked"
        return 501 if is_framed else 400, "the only Transfer-Encoding that is supported is chunked"
    if expectation != b"100-continue" and not head.is_http_10:
        return 417, "the only expectation that can be met is 100-continue"
    is_too_large = head.content_length > limits.http_max_input_bytes
    return size_refusal(head, head.content_length, limits) if is_too_large else None


def _host_refusal(head: RequestHead) -> tuple[int, str] | None:
    """Returns why RFC 9112, 3.2 forbids a missing or malformed Host; None if it does not."""
    host = head.headers.get(b"host")
    if host is None:
        is_fine = head.is_http_10
        return None if is_fine else (400, "expected a Host header in a request of HTTP 1.1")
    if _HOST.fullmatch(host):
        return None
    return 400, f"expected a name or an address as Host, got {host.decode('latin-1')!a}"


def size_refusal(head: RequestHead, size: int, limits: ClientLimits) -> tuple[int, str]:
    """Returns the refusal of a body that is too large, in Triton's words for what it has in it."""
    most = limits.http_max_input_bytes
    json_length = head.headers.get(b"inference-header-content-length")
    if head.target.partition(b"?")[0].endswith(_JSON_ONLY):
        json_length = None
    if b"content-encoding" in head.headers or json_length not in (None, b"0"):
        problem = f"request size of {size} bytes exceeds the maximum allowed value of {most} bytes"
    elif json_length is None:
        problem = (
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of "
            f"{most} bytes"
        )
    else:
        problem = (
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{most} bytes"
        )
    return 400, f"{problem}. {SIZE_HINT}"
