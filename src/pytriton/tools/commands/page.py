# SPDX-License-Identifier: Apache-2.0
"""`pytriton page`: the link to the page of one's own server, with its token."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence

from pytriton.client.kserve.address import AddressError, metrics_address, parse_address
from pytriton.runtime.transport import rendezvous
from pytriton.tools.commands.own_server import ask_own_server, own_metrics_address
from pytriton.utils.option_parser import OptionParser

_MOST_PORTS = 12


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
