# SPDX-License-Identifier: Apache-2.0
"""Decides which requests of web browsers a port refuses, because a page of another site made them.

A browser sends requests of any page to any server that it reaches, also to one that listens on its
own machine only. Programs that are no browsers send neither Origin nor Sec-Fetch-Site.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.serving.server.api.authorization import HeaderLookup

# They change nothing. Browsers do not show their answers to pages of another origin.
_READING = frozenset({b"GET", b"HEAD", b"OPTIONS"})
# The values of Sec-Fetch-Site (W3C, Fetch Metadata) for a page of this server, and for the user.
_OWN_SITES = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS = {b"http": b"80", b"https": b"443"}


class OriginPolicy:
    """The hosts and the origins whose requests one port answers, by the address it listens on."""

    def __init__(self, address: str) -> None:
        self._own_names = _own_names(address) if _is_loopback(address) else None

    def refusal(self, method: bytes, header: HeaderLookup) -> str | None:
        """Returns the error message for a request; None if it is allowed."""
        host = header(b"host") or b""
        if self._own_names is not None and host and not _is_own_host(host, self._own_names):
            return (
                "this port listens on this machine only: expected localhost, the machine's name or "
                f"an IP address as Host, got Host {_quoted(host)}"
            )
        if method in _READING:
            return None
        site, origin = header(b"sec-fetch-site"), header(b"origin")
        # A proxy may change the Host, but what the browser says of the site stays true.
        if site is not None:
            is_own = site in _OWN_SITES
        else:
            is_own = origin is None or _is_origin_of(origin, host)
        if is_own:
            return None
        return (
            "requests from pages of another origin are refused: expected the Origin of Host "
            f"{_quoted(host)}, got Origin {_quoted(origin or b'')}"
            + ("" if site is None else f" with Sec-Fetch-Site {_quoted(site)}")
        )


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
    """Returns whether a Host is a name of this machine or an IP address.

    The owner of a domain can make its name mean this machine (DNS rebinding), and so let pages of
    the domain read answers. An IP address always means the machine that the page came from.
    """
    name = _split(host)[0].decode("latin-1").removesuffix(".")
    if name in names or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_origin_of(origin: bytes, host: bytes) -> bool:
    """Returns whether an Origin is that of a Host; the scheme may be that of a proxy."""
    scheme, separator, place = origin.lower().partition(b"://")
    default = _DEFAULT_PORTS.get(scheme)
    if not separator or default is None:  # as "null", the origin of files and of sandboxes
        return False
    (name, port), (expected, expected_port) = _split(place), _split(host)
    return name == expected and (port or default) == (expected_port or default)


def _split(place: bytes) -> tuple[bytes, bytes]:
    """Returns the name in small letters and the port of `name:port`; no port is empty."""
    name, _, port = place.lower().rpartition(b":")
    return (name, port) if name and not port.endswith(b"]") else (place.lower(), b"")


def _quoted(value: bytes) -> str:
    return ascii(value.decode("latin-1"))
