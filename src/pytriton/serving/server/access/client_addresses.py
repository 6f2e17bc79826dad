# SPDX-License-Identifier: Apache-2.0
"""The address of who sent a request, where proxies stand between that client and the server.

A proxy appends the address that it was reached from to `X-Forwarded-For` or `Forwarded` (RFC 7239).
Everybody can send these headers, so they count only if they come from a proxy that the settings
name. The client is then the right-most address that is no such proxy: what is left of it was
written by the client. No I/O; the limit of connections by address does not ask here, because it
counts connections before anybody has sent a header.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.serving.server.access.decisions import HeaderLookup

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

FORWARDED_FOR, FORWARDED = b"x-forwarded-for", b"forwarded"
# What is left of this many bytes is not looked at: a chain of proxies is shorter.
_MAX_BYTES = 1024
_KNOWN = 1024  # chains whose client is known
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")  # IPv4 in IPv6

# The forms of an address in these headers: with a port, in brackets, or as it is.
_ADDRESS = re.compile(
    r"(?P<v4>[0-9.]+)(:[0-9]{1,5})?|\[(?P<v6>[0-9a-fA-F:.]+)\](:[0-9]{1,5})?|(?P<bare>[0-9a-fA-F:.]+)"
)
# One element of Forwarded, which has to fit as a whole: a comma inside of a quoted text divides
# it into parts that do not, so that nobody can add an element in a text that a proxy quotes.
_NAME, _VALUE = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", r"(?:[^\s\",;=\\]+|\"[^\"\\]*\")"
_PAIR = rf"{_NAME}={_VALUE}"
_ELEMENT = re.compile(rf"{_PAIR}(?:\s*;\s*{_PAIR})*(?:\s*;)?")
_PAIRS = re.compile(rf"({_NAME})=({_VALUE})")


def parse_proxies(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns networks in one form, given texts with addresses and networks between commas.

    Raises:
        ValueError: One of them is none, or is everybody.
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(str(_parse_network(part)) for part in parts))


def _parse_network(text: str) -> IpNetwork:
    try:
        if "%" in text:
            raise ValueError("links of this machine have no proxies")  # noqa: TRY301  said below
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            "expected addresses and networks such as 127.0.0.1, 10.0.0.0/8 or fd00::/8, got "
            f"{text!r}"
        ) from None
    if ipaddress.ip_address(text.partition("/")[0]) != network.network_address:
        raise ValueError(f"expected a network such as {network}, got {text!r}")
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        mapped = network.network_address.ipv4_mapped
        network = ipaddress.ip_network(f"{mapped}/{network.prefixlen - _MAPPED.prefixlen}")
    if not network.prefixlen:
        raise ValueError(f"expected proxies, got {text!r}: every client could choose its address")
    return network


class TrustedProxies:
    """Decides on the addresses of clients, for all ports.

    Args:
        networks: those of the proxies, as `parse_proxies` returns them.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(each) for each in networks]
        # Clients repeat themselves: a known chain takes 0.5 us instead of 20.
        self._is_proxy = functools.lru_cache(_KNOWN)(self._is_trusted_text)
        self._find_known = functools.lru_cache(_KNOWN)(self._find)

    def client_of(self, peer: str, header: HeaderLookup) -> str:
        """Returns the address of the client of a request.

        Args:
            peer: the address of the other end of the connection; empty: it has none.
            header: returns the values of its headers, which only those of proxies are asked for.
                Several headers of one name are joined by commas in the order in which they came.
        """
        if not self._is_proxy(peer):
            return peer
        listed, forwarded = header(FORWARDED_FOR), header(FORWARDED)
        if listed is None and forwarded is None:  # the proxy asks itself, as for health
            return peer
        return self._find_known(peer, _last(listed), _last(forwarded))

    def _find(self, peer: str, listed: bytes | None, forwarded: bytes | None) -> str:
        found = [
            self._first_stranger(peer, value.decode("latin-1"), read)
            for value, read in ((listed, _parse_address), (forwarded, _parse_element))
            if value is not None
        ]
        # Most proxies write one of the headers and pass on the other, which the client may have
        # written. If they differ, nobody can say which one that is.
        return found[0] if len(set(found)) == 1 else peer

    def _first_stranger(self, peer: str, text: str, read: Callable[[str], IpAddress | None]) -> str:
        """Returns the right-most address of a list that is no proxy.

        Where the list does not go on with an address, that is the last proxy that is known.
        """
        nearest = peer
        for part in reversed(text.split(",")):
            if not part.strip():  # RFC 9110, 5.6.1: elements of lists may be empty
                continue
            address = read(part)
            if address is None:
                break
            nearest = str(address)
            if not self._is_trusted(address):
                break
        return nearest

    def _is_trusted_text(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:  # not of the internet
            return False
        return self._is_trusted(_unmapped(address))

    def _is_trusted(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)

    def __repr__(self) -> str:
        return f"<TrustedProxies {', '.join(map(str, self._networks))}>"


def _last(value: bytes | None) -> bytes | None:
    """Returns the last elements of a list; one that is cut becomes something else."""
    if value is None or len(value) <= _MAX_BYTES:
        return value
    return b"?" + value[-_MAX_BYTES:]


def _parse_address(text: str) -> IpAddress | None:
    """Returns an address without its port; None if it is none, or one of a link (with %)."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return None
    try:
        return _unmapped(ipaddress.ip_address(found["v4"] or found["v6"] or found["bare"]))
    except ValueError:
        return None


def _parse_element(text: str) -> IpAddress | None:
    """Returns the address in an element of Forwarded; None if it has none, or several."""
    if _ELEMENT.fullmatch(text.strip()) is None:
        return None
    values = [value for name, value in _PAIRS.findall(text) if name.lower() == "for"]
    return _parse_address(values[0].strip('"')) if len(values) == 1 else None


def _unmapped(address: IpAddress) -> IpAddress:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
