# SPDX-License-Identifier: Apache-2.0
"""Servers of the same user on this machine, which commands may use without a token.

`pytriton page` prints the link to the page of one, with its token.

A server tells what opens it on the socket where processes of its user find it by its port. No token
is in a file: the answer comes from the process that serves the port now, and the operating system
tells each side that the other belongs to the same user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import socket
import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.client.kserve.address import Address, AddressError, metrics_address, parse_address
from pytriton.runtime.transport import rendezvous
from pytriton.runtime.transport.control import AskAccess, ControlLink, ServerAccess
from pytriton.utils.option_parser import OptionParser

_TIMEOUT_S = 2.0  # a server that hangs is asked without a token, and then the question says so
_HTTP, _GRPC, _METRICS = range(3)  # the places of the ports in `ServerAccess`
_PROTOCOLS = {_HTTP: "http", _GRPC: "grpc", _METRICS: "http"}
_ANY_ADDRESS = ("0.0.0.0", "::")
_MOST_PORTS = 12  # that a message names


def ask_own_server(address: Address) -> ServerAccess | None:
    """Ask the server at an address what opens it.

    Returns:
        Its answer; None if it is no server of this user, or not on this machine.
    """
    if not _is_loopback(address.host):
        return None
    try:
        sock = rendezvous.connect(address.port, _TIMEOUT_S)
    except OSError:  # nobody is there, or another user
        return None
    sock.settimeout(_TIMEOUT_S)
    link = ControlLink(sock)
    with contextlib.closing(link):
        try:
            link.send(AskAccess())
            answer = link.receive()
        except (EOFError, OSError, ValueError):
            return None  # it ends, hangs, or is of a version that does not know the question
    return answer if isinstance(answer, ServerAccess) else None


def own_headers(
    access: ServerAccess | None, address: Address, given: Iterable[str] = ()
) -> dict[str, str]:
    """Returns the headers that open a port of a server.

    Args:
        access: what the server said.
        address: where they are sent; none are if it may lead to anybody else.
        given: the names of the headers that a person gave, which are left out.
    """
    if access is None:
        return {}
    place = next(
        (
            place
            for place, protocol in _PROTOCOLS.items()
            if (protocol, access.ports[place]) == (address.protocol, address.port)
        ),
        None,
    )
    if place is None or not _leads_to(address, access.addresses[place]):
        return {}
    chosen = {name.lower() for name in given}
    return {
        name: value
        for name, value in _headers_of(access, place).items()
        if name not in chosen and value.isascii() and value.isprintable()
    }


def _headers_of(access: ServerAccess, place: int) -> Mapping[str, str]:
    if place == _GRPC:
        return access.grpc_headers
    if not access.page_token:
        return access.http_headers
    token = {TRITON_ACCESS_HEADER: access.page_token}
    if place == _METRICS:
        return {**access.http_headers, **token}
    return {**token, **access.http_headers}  # it opens recordings


def own_address(access: ServerAccess | None, address: Address) -> Address:
    """Returns an address that was given without a scheme, encrypted if the server's port is."""
    if access is None:
        return address
    places = zip(_PROTOCOLS.values(), access.ports, access.uses_tls, strict=True)
    uses_tls = (address.protocol, address.port, True) in places
    return dataclasses.replace(address, uses_tls=uses_tls)


def own_metrics_address(access: ServerAccess | None, server: Address) -> Address | None:
    """Returns where the metrics and the page of a server are; None if it has none."""
    if access is None or not access.ports[_METRICS]:
        return None
    listens_on = access.addresses[_METRICS]
    uses_tls = access.uses_tls[_METRICS]
    address = Address("http", uses_tls=uses_tls, host=server.host, port=access.ports[_METRICS])
    return (
        address if _leads_to(address, listens_on) else dataclasses.replace(address, host=listens_on)
    )


def _is_loopback(host: str) -> bool:
    found = _addresses(host)
    return bool(found) and all(ipaddress.ip_address(each).is_loopback for each in found)


def _addresses(host: str, family: int = socket.AF_UNSPEC) -> list[str]:
    """Returns the addresses that a connection to a host tries."""
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found]


def _leads_to(address: Address, listens_on: str) -> bool:
    """Whether connections to an address reach the server that listens there, and no other.

    The name localhost often has two addresses, and somebody else may listen on the one that the
    server does not have.
    """
    found = _addresses(address.host)
    if not found or not all(ipaddress.ip_address(each).is_loopback for each in found):
        return False
    family = socket.AF_INET6 if ":" in listens_on else socket.AF_INET
    its_own = _addresses(listens_on, family)
    covered = [each for each in found if each in its_own or _is_any(listens_on, each)]
    others = [each for each in found if each not in covered]
    return bool(covered) and not any(_has_listener(each, address.port) for each in others)


def _is_any(listens_on: str, address: str) -> bool:
    """Whether a server on all addresses has this one; IPv6's are for IPv4 as well."""
    return listens_on in _ANY_ADDRESS and (":" in listens_on or ":" not in address)


def _has_listener(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _TIMEOUT_S).close()
    except TimeoutError:
        return True  # somebody who does not accept yet
    except OSError:
        return False
    return True


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Print the link, or open it; 1 if there is none."""
    parser = _parser()
    options = parser.parse_args(list(arguments))
    try:
        address = parse_address(options.url)
    except AddressError as error:
        parser.error(str(error))
    access = ask_own_server(address)
    if access is None:
        complain(
            f"No server of this user on this machine has {address.host_and_port}. {_others()} "
            f"The page of another user's server shows most things without a token, by default at "
            f"{metrics_address(address)}/."
        )
        return 1
    page = own_metrics_address(access, address)
    if page is None or not access.page_token:
        complain(f"The server at {address} has no page: it was turned off when it started.")
        return 1
    link = f"{page}/#token={access.page_token}"
    if options.open and webbrowser.open(link):
        return 0
    show(access.page_token if options.only_token else link)
    return 0


def _others() -> str:
    ports = [str(port) for port in rendezvous.ports_of_user()]
    if not ports:
        return "There is none at any port."
    more = " and others" if len(ports) > _MOST_PORTS else ""
    return f"Servers of this user have the ports {', '.join(ports[:_MOST_PORTS])}{more}."


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton page",
        description="Print the link to the page of a server that you run on this machine, with "
        "the token for its log, its form and its buttons. Do not pass the link on.",
        epilog="Other commands, such as perf and top, find the token of your own server by "
        "themselves.",
    )
    parser.add_argument(
        "-u",
        "--url",
        default="localhost",
        metavar="ADDRESS",
        help="of HTTP or gRPC, such as localhost:8000 (the default)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--open",
        action="store_true",
        help="open it in a browser, if there is one, whose command line others may see",
    )
    what.add_argument(
        "--only-token", action="store_true", help="print the token alone, as for a script"
    )
    return parser
