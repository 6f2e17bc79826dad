# SPDX-License-Identifier: Apache-2.0
"""Which requests of web browsers a port refuses."""

from __future__ import annotations

import socket

import pytest

from pytriton.serving.server.api.origins import OriginPolicy
from pytriton.serving.server.options.endpoints import EndpointOptions
from tests.server.http_models import Service

EVERYWHERE = OriginPolicy("0.0.0.0")
LOOPBACK = ("127.0.0.1", "127.0.0.2", "::1", "localhost")


def refusal(policy: OriginPolicy, method: bytes = b"POST", **headers: bytes) -> str | None:
    return policy.refusal(method, {k.replace("_", "-").encode(): v for k, v in headers.items()}.get)


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"same-origin, none", b"", b"new"])
@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"PATCH", b"BREW"])
def test_request_that_a_browser_calls_foreign_is_refused(site, method):
    # The origin does not help: a proxy may have made the Host equal to it.
    found = refusal(EVERYWHERE, method, host=b"h:1", origin=b"http://h:1", sec_fetch_site=site)

    assert found == (
        "requests from pages of another origin are refused: expected the Origin of Host 'h:1', "
        f"got Origin 'http://h:1' with Sec-Fetch-Site {site.decode()!r}"
    )


@pytest.mark.parametrize("site", [b"same-origin", b"none"])
def test_browser_is_believed_that_a_request_is_of_the_own_page(site):
    origin = b"https://models.example"

    assert refusal(EVERYWHERE, host=b"10.0.0.1:8000", origin=origin, sec_fetch_site=site) is None


@pytest.mark.parametrize(
    "origin, host",
    [
        (b"http://h:8000", b"h:8000"),
        (b"http://H:8000", b"h:8000"),
        (b"https://h", b"h"),
        (b"http://h", b"h:80"),
        (b"https://h", b"h:443"),
        (b"http://[::1]:8000", b"[::1]:8000"),
        (b"http://[::1]", b"[::1]"),
    ],
)
def test_origin_of_the_host_is_allowed(origin, host):
    assert refusal(EVERYWHERE, host=host, origin=origin) is None


@pytest.mark.parametrize(
    "origin, host",
    [
        (b"null", b"null"),
        (b"", b""),
        (b"http://evil.example", b"h:8000"),
        (b"http://h:3000", b"h:8000"),
        (b"http://h", b"h:443"),
        (b"https://h", b"h:80"),
        (b"http://h:8000.evil.example", b"h:8000"),
        (b"http://h:8000, http://h:8000", b"h:8000"),
        (b"chrome-extension://h:8000", b"h:8000"),
        (b"http://[::1]", b"[::1]:8000"),
        (b"http://\xff", b"h"),
    ],
)
def test_origin_that_is_not_that_of_the_host_is_refused(origin, host):
    found = refusal(EVERYWHERE, host=host, origin=origin)

    assert found == (
        "requests from pages of another origin are refused: expected the Origin of Host "
        f"{host.decode()!a}, got Origin {origin.decode('latin-1')!a}"
    )


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_request_that_only_reads_may_come_from_anywhere(method):
    headers = {"host": b"h", "origin": b"null", "sec_fetch_site": b"cross-site"}

    assert refusal(EVERYWHERE, method, **headers) is None


def test_program_that_is_no_browser_is_not_concerned():
    assert refusal(EVERYWHERE, host=b"anything.example") is None
    assert refusal(EVERYWHERE) is None


@pytest.mark.parametrize("address", LOOPBACK)
@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8000", "localhost.", "a.b.localhost:8000"),
        *("127.0.0.1", "127.9.9.9:8000", "[::1]:8000", "[::1]", "0.0.0.0:8000", "192.168.1.2"),
        socket.gethostname(),
        socket.gethostname().upper() + ":8000",
    ],
)
def test_loopback_port_answers_to_its_own_names_and_to_addresses(address, host):
    assert refusal(OriginPolicy(address), b"GET", host=host.encode()) is None


@pytest.mark.parametrize("address", LOOPBACK)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "xlocalhost", "127.0.0.1.nip"],
)
def test_loopback_port_refuses_other_names(address, method, host):
    found = refusal(OriginPolicy(address), method, host=host.encode())

    assert found == (
        "this port listens on this machine only: expected localhost, the machine's name, an IP "
        f"address or one of --allowed-hosts as Host, got Host '{host}'"
    )


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_port_answers_old_clients_without_a_host(address):
    assert refusal(OriginPolicy(address)) is None
    assert refusal(OriginPolicy(address), host=b"") is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_port_for_other_machines_answers_to_any_name(address):
    assert refusal(OriginPolicy(address), b"GET", host=b"models.example") is None


@pytest.mark.parametrize(
    "headers",
    [(b"Content-Length: 9999999",), (b"Content-Length: 9", b"Expect: 100-continue")],
    ids=["large", "expecting"],
)
def test_foreign_request_is_refused_before_its_body(headers):
    client = Service().connect()
    lines = (b"POST /v2/models/double/infer HTTP/1.1", b"Host: h", b"Origin: null", *headers)

    client.send(b"\r\n".join((*lines, b"", b"")))

    (answer,) = client.answers()
    assert answer.status == 403
    assert client.saw_end


def test_foreign_head_is_refused_again_and_an_own_one_is_kept():
    service = Service(http=EndpointOptions(port=0, address="127.0.0.1"))
    for host, status in ((b"evil.example", 403), (b"localhost", 200)) * 2:
        client = service.connect()
        client.send(b"GET /v2 HTTP/1.1\r\nHost: %b\r\n\r\n" % host)

        assert [answer.status for answer in client.answers()] == [status]
    assert len(service.api.cached_heads) == 1
