# SPDX-License-Identifier: Apache-2.0
"""Decides what web browsers may do on a port: whose pages it answers, and under which names.

A browser sends requests of any page to any server that it reaches, also to one that listens on its
own machine only. Programs that are no browsers send neither Origin nor Sec-Fetch-Site. Pages of
other origins are refused, unless the settings for CORS (W3C and WHATWG, Fetch) allow them.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytriton.exceptions import PyTritonValidationError

if TYPE_CHECKING:
    from pytriton.serving.server.access.decisions import HeaderLookup

ANY = "*"
FOREIGN_PAGES = "foreign_pages"  # the name in metrics of what is refused here
# They change nothing. Browsers do not show their answers to pages of another origin.
_READING = frozenset({b"GET", b"HEAD", b"OPTIONS"})
# The values of Sec-Fetch-Site (W3C, Fetch Metadata) for a page of this server, and for the user.
_OWN_SITES = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS = {b"http": b"80", b"https": b"443"}
# What a page can send without asking first, so that old browsers tell no Origin (WHATWG, Fetch,
# "CORS-safelisted request-header").
_FORM_TYPES = (b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
# Nobody can own names below these in the DNS of the internet (RFC 2606, 6761, 6762, 8375, 9476 and
# ICANN's resolutions on .internal, .corp and .home), so no page can make one mean this server.
_PRIVATE_ENDINGS = (
    *(".localhost", ".local", ".internal", ".home.arpa", ".test", ".alt"),
    *(".corp", ".home", ".lan", ".intranet", ".private", ".localdomain", ".svc"),
)

_METHODS = b"GET, HEAD, POST, DELETE"
# Beside the headers that browsers let pages send anyway, and those of restricted APIs.
_ALLOWED_HEADERS = (
    *("content-type", "content-encoding", "authorization", "x-api-key", "triton-access-token"),
    *("inference-header-content-length", "x-request-id", "traceparent", "tracestate", "baggage"),
    "x-stainless-*",  # of OpenAI's clients
)
_EXPOSED_HEADERS = (
    b"Inference-Header-Content-Length, Content-Encoding, Content-Length, Retry-After, Allow, "
    b"X-Request-Id"
)
_MAX_KNOWN_ORIGINS = 64

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:(\d+|\*))?")
_HOST = re.compile(r"(\*\.)?([a-z0-9_.-]+|\[[0-9a-f:.]+\])")
_HEADER = re.compile(r"[a-z0-9!#$%&'+.^_`|~-]+\*?|\*")


class BrowserOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for web browsers; the texts are in small letters, as `parsed` leaves them."""

    allow_origins: tuple[str, ...] = ()  # empty: no CORS
    allow_headers: tuple[str, ...] = ()  # empty: those that clients of this server need
    allow_credentials: bool = False
    max_age_s: int = 600  # for which a browser need not ask again
    # Beyond the own names; empty: only ports that strangers reach through a browser are checked.
    allowed_hosts: tuple[str, ...] = ()

    def parsed(self) -> BrowserOptions:
        """Returns the settings in one form.

        Raises:
            PyTritonValidationError: A value is none, or credentials go to every page.
        """
        options = BrowserOptions(
            allow_origins=tuple(map(_parse_origin, _split_list(self.allow_origins))),
            allow_headers=tuple(map(_parse_header, _split_list(self.allow_headers))),
            allow_credentials=self.allow_credentials,
            max_age_s=self.max_age_s,
            allowed_hosts=tuple(map(_parse_host, _split_list(self.allowed_hosts))),
        )
        if options.allow_credentials and ANY in options.allow_origins:
            raise PyTritonValidationError(
                "--cors-allow-credentials needs origins by name: expected no * in "
                "--cors-allow-origins, as every page could act for the users of this server"
            )
        return options


def _split_list(texts: Iterable[str]) -> list[str]:
    return [part.strip().lower() for text in texts for part in text.split(",")]


def _parse_origin(text: str) -> str:
    """Returns an origin as browsers write it: without the port that the scheme implies."""
    if text == ANY:
        return text
    found = _ORIGIN.fullmatch(text)
    if found is None:
        hint = " (the origin of every sandboxed page)" if text == "null" else ""
        raise PyTritonValidationError(
            "--cors-allow-origins: expected origins such as https://app.example.com, "
            "https://*.example.com, http://localhost:* or a single *, without a path, "
            f"got {text!r}{hint}"
        )
    scheme, port = found[1].encode(), found[5]
    if port is not None and port.encode() == _DEFAULT_PORTS.get(scheme):
        return text.rpartition(":")[0]
    return text


def _parse_header(text: str) -> str:
    if _HEADER.fullmatch(text) is None:
        raise PyTritonValidationError(
            f"--cors-allow-headers: expected names of headers such as x-tenant or x-*, got {text!r}"
        )
    return text


def _parse_host(text: str) -> str:
    if text != ANY and _HOST.fullmatch(text) is None:
        raise PyTritonValidationError(
            "--allowed-hosts: expected names such as models.example.com, *.example.com or a single "
            f"*, without a port, got {text!r}"
        )
    return text.removesuffix(".")


class PreflightAnswer(NamedTuple):
    """The answer to the question of a browser whether a page may send a request."""

    status: int
    headers: bytes  # whole lines
    message: str = ""  # of a refusal


class OriginPolicy:
    """The hosts and the origins whose requests one port answers.

    Args:
        address: The address that the port listens on.
        options: The settings, which were parsed.
        has_cors: Whether the settings for CORS count on this port.
        is_open: Whether the server asks nobody for a token; then names are checked more strictly.
        more_headers: Names of further headers that pages may send, unless the settings name all.
    """

    def __init__(
        self,
        address: str,
        options: BrowserOptions | None = None,
        *,
        has_cors: bool = True,
        is_open: bool = False,
        more_headers: Iterable[str] = (),
    ) -> None:
        options = BrowserOptions() if options is None else options
        self.refused_count = 0  # for metrics
        self._is_loopback = _is_loopback(address)
        hosts = frozenset(options.allowed_hosts)
        self._checks_hosts = ANY not in hosts and (self._is_loopback or is_open or bool(hosts))
        self._checks_programs = self._is_loopback or bool(hosts)
        self._hosts = _own_names(address) | hosts
        self._allows_all = ANY in options.allow_origins
        self.has_cors = has_cors and bool(options.allow_origins)
        self._origins = options.allow_origins if self.has_cors else ()
        names = options.allow_headers or (*_ALLOWED_HEADERS, *map(str.lower, more_headers))
        self._header_names = frozenset(names)
        self._header_starts = tuple(name[:-1] for name in names if name.endswith(ANY))
        self._max_age_s = options.max_age_s
        self._credentials = (
            b"Access-Control-Allow-Credentials: true\r\n" if options.allow_credentials else b""
        )
        self._known_origins: dict[bytes, bool] = {}

    # Requests

    def refusal(self, method: bytes, header: HeaderLookup) -> str | None:
        """Returns the error message for a request; None if it is allowed."""
        host = header(b"host") or b""
        if self._checks_hosts and host and not _is_own_host(host, self._hosts):
            problem = self._host_refusal(host, header)
            if problem is not None:
                return problem
        if method in _READING:
            return None
        site, origin = header(b"sec-fetch-site"), header(b"origin")
        # A proxy may change the Host, but what the browser says of the site stays true.
        if site is not None:
            is_own = site in _OWN_SITES
        elif origin is not None:
            is_own = _is_origin_of(origin, host)
        else:
            is_own = not _is_form_of_other_page(host, header)
        if is_own or (origin is not None and self.allows(origin)):
            return None
        return (
            "requests from pages of another origin are refused: expected the Origin of Host "
            f"{_quoted(host)}"
            + (" or one of --cors-allow-origins" if self.has_cors else "")
            + f", got Origin {_quoted(origin or b'')}"
            + ("" if site is None else f" with Sec-Fetch-Site {_quoted(site)}")
        )

    def _host_refusal(self, host: bytes, header: HeaderLookup) -> str | None:
        """Returns why a Host that is none of our own names is refused; None if it is not."""
        if self._is_loopback:
            reason = "this port listens on this machine only"
        elif self._checks_programs:
            reason = "this server answers to certain names only"
        elif _is_private(host) or not _is_browser(header):
            return None
        else:
            reason = "this server has no token, so browsers reach it by its own names only"
        return (
            f"{reason}: expected localhost, the machine's name, an IP address or one of "
            f"--allowed-hosts as Host, got Host {_quoted(host)}"
        )

    # Cross-origin resource sharing

    def allows(self, origin: bytes) -> bool:
        """Returns whether the settings for CORS allow pages of an origin."""
        if not self.has_cors:
            return False
        is_allowed = self._known_origins.get(origin)
        if is_allowed is None:
            text = origin.decode("latin-1").lower()
            is_allowed = self._allows_all or any(_fits(text, each) for each in self._origins)
            if len(self._known_origins) >= _MAX_KNOWN_ORIGINS:
                self._known_origins.clear()
            self._known_origins[origin] = is_allowed
        return is_allowed

    def answer_headers(self, header: HeaderLookup) -> bytes:
        """Returns the lines that the answer to a request has, so that its page may read it.

        Only for ports with CORS: others send none.
        """
        # A cache must not give an answer without these lines to a page of an allowed origin, nor
        # the answer for one origin to another (WHATWG, Fetch, "CORS protocol and HTTP caches").
        lines = b"Vary: Origin\r\n"
        origin = header(b"origin")
        if origin is None or not self.allows(origin):
            return lines
        return b"Access-Control-Allow-Origin: %b\r\n%bAccess-Control-Expose-Headers: %b\r\n%b" % (
            b"*" if self._allows_all else origin,
            self._credentials,
            _EXPOSED_HEADERS,
            lines,
        )

    def preflight(self, header: HeaderLookup) -> PreflightAnswer | None:
        """Returns the answer to an OPTIONS request; None if no page asks with it for anything."""
        origin = header(b"origin")
        if not self.has_cors or origin is None or not header(b"access-control-request-method"):
            return None
        vary = (
            b"Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers, "
            b"Access-Control-Request-Private-Network\r\n"
        )
        if not self.allows(origin):
            message = f"Origin {_quoted(origin)} is none of --cors-allow-origins"
            return PreflightAnswer(403, vary, message)
        lines = [
            b"Access-Control-Allow-Origin: " + (b"*" if self._allows_all else origin),
            b"Access-Control-Allow-Methods: " + _METHODS,
            b"Access-Control-Max-Age: %d" % self._max_age_s,
        ]
        asked = header(b"access-control-request-headers") or b""
        names = [name for name in map(bytes.strip, asked.lower().split(b",")) if name]
        allowed = [name for name in names if self._allows_header(name)]
        if allowed:
            lines.append(b"Access-Control-Allow-Headers: " + b", ".join(allowed))
        # Chromium asks so before a page of the internet reaches a server of a private network.
        if header(b"access-control-request-private-network") == b"true":
            lines.append(b"Access-Control-Allow-Private-Network: true")
        return PreflightAnswer(204, b"\r\n".join((*lines, self._credentials + vary)))

    def _allows_header(self, name: bytes) -> bool:
        text = name.decode("latin-1")
        if _HEADER.fullmatch(text) is None or text.endswith(ANY):  # the answer repeats it
            return False
        return text in self._header_names or text.startswith(self._header_starts or (ANY,))


def _fits(origin: str, allowed: str) -> bool:
    """Returns whether an origin is an allowed one, which may have * for subdomains or the port."""
    if origin == allowed:
        return True
    found = _ORIGIN.fullmatch(allowed)
    if found is None or not (found[2] or found[5] == ANY):
        return False
    came = _ORIGIN.fullmatch(origin)
    if came is None or came[2] or came[1] != found[1]:
        return False
    has_port = found[5] == ANY or came[5] == found[5]
    has_name = came[3].endswith(f".{found[3]}") if found[2] else came[3] == found[3]
    return has_port and has_name


def _is_loopback(address: str) -> bool:
    """Returns whether only clients on this machine reach an address, which may be a name."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:  # listening on it fails, too, or it is empty, which means all addresses
        return False
    return all(ipaddress.ip_address(where[4][0]).is_loopback for where in found)


def _own_names(address: str) -> frozenset[str]:
    machine = socket.gethostname().lower()
    return frozenset({"localhost", address.lower(), machine, machine.partition(".")[0]})


@functools.lru_cache(maxsize=64)  # heads that differ in each request cost 4 us less
def _is_own_host(host: bytes, names: frozenset[str]) -> bool:
    """Returns whether a Host is one of these names or an IP address.

    The owner of a domain can make its name mean this machine (DNS rebinding), and so let pages of
    the domain read answers. An IP address always means the machine that the page came from.
    """
    name = _name_of(host)
    if name in names or name.endswith(".localhost"):
        return True
    if any(each.startswith("*.") and name.endswith(each[1:]) for each in names):
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_private(host: bytes) -> bool:
    """Returns whether a name means nothing in the DNS of the internet, so that nobody owns it.

    Services of Kubernetes have such names, and machines of a network at home.
    """
    name = _name_of(host)
    return "." not in name or name.endswith(_PRIVATE_ENDINGS)


def _is_browser(header: HeaderLookup) -> bool:
    """Returns whether a request looks like that of a browser.

    A browser tells Sec-Fetch-Site over TLS and to localhost only, and Origin only in requests that
    change something. A page can replace the value of other headers in some browsers, but it cannot
    remove Accept-Language, which programs do not send. Node.js does, beside a Sec-Fetch-Mode that
    browsers never send alone.
    """
    return (
        header(b"origin") is not None
        or header(b"sec-fetch-site") is not None
        or (header(b"user-agent") or b"").startswith(b"Mozilla/")
        or (header(b"accept-language") is not None and header(b"sec-fetch-mode") is None)
    )


def _is_form_of_other_page(host: bytes, header: HeaderLookup) -> bool:
    """Returns whether an old browser, which tells no Origin, may have sent a form of a page."""
    kind = (header(b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind not in _FORM_TYPES or not (header(b"user-agent") or b"").startswith(b"Mozilla/"):
        return False
    page = header(b"referer") or b""
    return not _is_origin_of(b"/".join(page.split(b"/", 3)[:3]), host)


def _is_origin_of(origin: bytes, host: bytes) -> bool:
    """Returns whether an Origin is that of a Host; the scheme may be that of a proxy."""
    scheme, separator, place = origin.lower().partition(b"://")
    default = _DEFAULT_PORTS.get(scheme)
    if not separator or default is None:  # as "null", the origin of files and of sandboxes
        return False
    (name, port), (expected, expected_port) = _split(place), _split(host)
    return name == expected and (port or default) == (expected_port or default)


def _name_of(host: bytes) -> str:
    return _split(host)[0].decode("latin-1").removesuffix(".")


def _split(place: bytes) -> tuple[bytes, bytes]:
    """Returns the name in small letters and the port of `name:port`; no port is empty."""
    name, _, port = place.lower().rpartition(b":")
    return (name, port) if name and not port.endswith(b"]") else (place.lower(), b"")


def _quoted(value: bytes) -> str:
    return ascii(value.decode("latin-1"))
