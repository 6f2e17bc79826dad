# SPDX-License-Identifier: Apache-2.0
"""The options that say which server to ask, and the connections that they give."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Iterable

from pytriton.base.security import API_KEY_HEADER, API_KEY_VARIABLE, TOKEN_VARIABLE
from pytriton.client.auth import create_auth_headers
from pytriton.client.kserve.address import (
    Address,
    AddressError,
    Tls,
    metrics_address,
    parse_address,
)
from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.http_client import KserveHttpClient, kserve_client
from pytriton.client.kserve.records import KserveClient
from pytriton.runtime.transport.control import ServerAccess
from pytriton.tools.commands.option_values import positive_number
from pytriton.tools.commands.own_server import (
    ask_own_server,
    own_address,
    own_headers,
    own_metrics_address,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ServerClients:
    """A server and the port of its metrics."""

    address: Address
    server: KserveClient
    metrics_address: Address
    metrics: KserveHttpClient

    def close(self) -> None:
        self.server.close()
        self.metrics.close()


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands have which ask a server."""
    group = add_address_options(parser)
    group.add_argument(
        "--timeout",
        type=positive_number,
        default=60.0,
        metavar="SECONDS",
        help="longest wait for an answer (60)",
    )
    group.add_argument(
        "--metrics-url",
        metavar="ADDRESS",
        help="where the metrics are; default is the same host, port 8002 or two after that of HTTP",
    )


def add_address_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that say where a server is, and what opens it; returns their group."""
    group = parser.add_argument_group("the server")
    group.add_argument(
        "-u",
        "--url",
        default="localhost",
        metavar="ADDRESS",
        help="such as localhost:8000 (the default), https://models.example.com, "
        "grpc://localhost:8001 or grpcs://…",
    )
    group.add_argument(
        "-i", "--protocol", choices=("http", "grpc"), help="for an address without a scheme"
    )
    group.add_argument(
        "--token",
        metavar="TOKEN",
        help="access token, which some questions need; your own server on this machine needs none. "
        f"The variable {TOKEN_VARIABLE} is safer, as other users of the machine see command lines",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of 'pytriton key create', for a server with --auth-config. The variable "
        f"{API_KEY_VARIABLE} is safer, for the same reason",
    )
    group.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="sent with every request; may be repeated",
    )
    group.add_argument(
        "--ca-file", metavar="FILE", help="certificates to trust, for https or grpcs"
    )
    group.add_argument(
        "--cert-file", metavar="FILE", help="certificate to show, where clients need one"
    )
    group.add_argument("--key-file", metavar="FILE", help="its private key")
    return group


def tls_of(options: argparse.Namespace) -> Tls:
    """Returns what encrypted connections trust and show, by the options."""
    return Tls(
        ca_file=options.ca_file, certificate_file=options.cert_file, key_file=options.key_file
    )


def headers_for(
    options: argparse.Namespace, address: Address, own: ServerAccess | None
) -> dict[str, str]:
    """Returns the headers of requests to an address.

    Args:
        options: those of `add_address_options`.
        address: where they are sent.
        own: what the server says of itself if it is one of this user; see `ask_own_server`.

    Raises:
        AskError: A header is malformed.
    """
    token = options.token or os.environ.get(TOKEN_VARIABLE)
    given = _headers(options.header)
    api_key = options.api_key or os.environ.get(API_KEY_VARIABLE)
    if api_key and not {API_KEY_HEADER, "authorization"} & {name.lower() for name in given}:
        given[API_KEY_HEADER] = api_key
    if token:
        return {**create_auth_headers(token, address.protocol), **given}
    return {**own_headers(own, address, given), **given}


def connect(options: argparse.Namespace) -> ServerClients:
    """Returns the connections that options ask for; nothing is sent yet.

    Raises:
        AskError: An option is wrong.
    """
    try:
        address = parse_address(options.url, options.protocol)
        own = ask_own_server(address)
        if "://" not in options.url:
            address = own_address(own, address)
        metrics = (
            parse_address(options.metrics_url, "http")
            if options.metrics_url
            else own_metrics_address(own, address) or metrics_address(address)
        )
    except AddressError as error:
        raise AskError(f"{str(error)[0].upper()}{str(error)[1:]}.") from error
    headers, metrics_headers = (headers_for(options, each, own) for each in (address, metrics))
    tls = tls_of(options)
    path = ""
    try:
        for path in filter(None, (options.ca_file, options.cert_file, options.key_file)):
            pathlib.Path(path).read_bytes()
        if address.protocol == "grpc":
            # grpc would also print what we say; it reads this when it is imported.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        server = kserve_client(address, headers, options.timeout, tls)
    except OSError as error:
        raise AskError(f"{path} cannot be read: {error.strerror}.") from error
    metrics_server = KserveHttpClient(metrics, metrics_headers, options.timeout, tls)
    return ServerClients(address, server, metrics, metrics_server)


def _headers(given: Iterable[str]) -> dict[str, str]:
    headers = {}
    for each in given:
        name, colon, value = each.partition(":")
        if not (colon and name.strip()):
            raise AskError(f"Expected a header as NAME:VALUE, got '{each}'.")
        headers[name.strip()] = value.strip()
    return headers
