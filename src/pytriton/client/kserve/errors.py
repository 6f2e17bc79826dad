# SPDX-License-Identifier: Apache-2.0
"""Errors of the KServe clients, and how they are put into words."""

from __future__ import annotations

import dataclasses
import http
import http.client
import json
import re
import ssl

from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.client.kserve.address import Address
from pytriton.client.kserve.metrics import metrics_port_hint

_RESTRICTED = re.compile(r"restricted, expecting header '([^']+)'")
_GRPC_PREFIX = "triton-grpc-protocol-"  # of metadata that restricts gRPC
_UNKNOWN_MODEL = re.compile(r"unknown model|not found|no such model|does not exist", re.IGNORECASE)
_DECOUPLED = re.compile(r"decoupled transaction policy", re.IGNORECASE)


class AskError(Exception):
    """A server gave no answer; the text is one or two plain sentences."""


class UnansweredError(AskError):
    """Nothing that speaks the protocol answers at the address, or it did not answer in time."""


class RestrictedError(AskError):
    """The server answers this only to requests with a certain header.

    Args:
        text: the sentences.
        needed: what a request needs, with the option that gives it.
    """

    def __init__(self, text: str, needed: str = "the access token (--token)") -> None:
        super().__init__(text)
        self.needed = needed


class ServerRefusedError(AskError):
    """The server answered with an error; the text is the server's."""

    @property
    def is_unknown_model(self) -> bool:
        """Whether the server says that it has no such model."""
        return bool(_UNKNOWN_MODEL.search(str(self)))

    @property
    def is_for_streams_only(self) -> bool:
        """Whether the server says that the model needs a stream."""
        return bool(_DECOUPLED.search(str(self)))


@dataclasses.dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole answer over HTTP."""

    status: int
    body: bytes
    head_length: int | None = None  # bytes of JSON before binary tensors; None: all of the body

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace").strip()


class ErrorWords:
    """Makes the errors of a client; commands with texts of their own override its methods."""

    def unreachable(self, address: Address, error: Exception, timeout_s: float) -> Exception:
        """Returns the error for a connection over HTTP that failed."""
        if isinstance(error, ConnectionRefusedError):
            return UnansweredError(f"No server answers at {address}: the connection was refused.")
        if isinstance(error, TimeoutError):
            return UnansweredError(f"{address} gave no answer within {timeout_s:g} seconds.")
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({error.verify_message})"
            return UnansweredError(f"{address} was not asked: {why}; --ca-file names one to trust.")
        if isinstance(error, ssl.SSLError):
            return UnansweredError(f"{address} does not speak TLS; is it an address for http?")
        if isinstance(error, http.client.BadStatusLine):
            return UnansweredError(f"{address} does not speak HTTP; is it the port for gRPC?")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return UnansweredError(f"No server answers at {address}: {reason}.")

    def unexpected(
        self, address: Address, path: str, reply: HttpReply, error: Exception
    ) -> Exception:
        """Returns the error for an answer over HTTP that is no document of the protocol."""
        return _metrics_port(address) or UnansweredError(
            f"{address}{path} does not answer as a KServe v2 server does: {error}."
        )

    def refused(self, address: Address, reply: HttpReply) -> Exception:
        """Returns the error for an answer over HTTP whose status is an error."""
        text = reply.text
        is_odd = reply.status == http.HTTPStatus.METHOD_NOT_ALLOWED
        try:
            text = json.loads(text)["error"]
        except (ValueError, KeyError, TypeError):
            text, is_odd = text[:300], True
        hint = _metrics_port(address) if is_odd else None
        return hint or refusal(text or f"HTTP status {reply.status}")

    def call_failed(self, address: Address, code: str, details: str, timeout_s: float) -> Exception:
        """Returns the error for a gRPC status; `code` is its name."""
        if code == "DEADLINE_EXCEEDED":
            return UnansweredError(f"{address} gave no answer in {timeout_s:g} seconds.")
        if code == "UNAVAILABLE" and "restricted" not in details:
            return _unavailable(address, details)
        if details.startswith("Received http2 header with status"):
            return _no_grpc(address)  # it speaks HTTP/2, as the port for HTTP does
        return refusal(details or f"gRPC status {code}")


def _no_grpc(address: Address) -> AskError:
    return UnansweredError(f"{address} does not speak gRPC; is it the port for HTTP?")


def _unavailable(address: Address, details: str) -> AskError:
    """Returns what grpc says about a server that it does not reach, in fewer words."""
    lower = details.lower()
    if "http1" in lower:
        return _no_grpc(address)
    if "certificate_verify_failed" in lower:
        return UnansweredError(
            f"{address} was not asked: its certificate is not trusted; --ca-file names one to "
            "trust."
        )
    if "wrong_version_number" in lower:
        return UnansweredError(f"{address} does not speak TLS; is it an address for grpc?")
    if "refused" in lower:
        reason = "the connection was refused"
    elif "resol" in lower or "domain name" in lower:
        reason = f"the name {address.host} is not known"
    elif "connect" in lower or "handshak" in lower or "socket" in lower:
        reason = details.rpartition("last error: ")[2]
    else:
        return refusal(details)
    return UnansweredError(f"No server answers at {address}: {reason}.")


def _metrics_port(address: Address) -> UnansweredError | None:
    """Returns the error for the port of the metrics; None if it is another port."""
    hint = metrics_port_hint(address.host, address.port)
    return UnansweredError(f"{hint}.") if hint else None


def refusal(text: str) -> AskError:
    """Returns the error for what a server said."""
    match = _RESTRICTED.search(text)
    if match is None:
        return ServerRefusedError(text)
    name = match.group(1)
    if name.removeprefix(_GRPC_PREFIX) == TRITON_ACCESS_HEADER:
        how = "give the right one with --token or in the variable TRITON_ACCESS_TOKEN"
        return RestrictedError(f"The server answers this only with its access token: {how}.")
    return RestrictedError(
        f"The server answers this only with the header '{name}': give it with -H {name}:VALUE.",
        f"the header '{name}' (-H {name}:VALUE)",
    )
