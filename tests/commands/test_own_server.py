# SPDX-License-Identifier: Apache-2.0
"""Tokens of one's own servers: who tells them, and where they are sent."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import webbrowser

import pytest

from pytriton.__main__ import main
from pytriton.client.kserve.address import parse_address
from pytriton.runtime.transport import rendezvous
from pytriton.runtime.transport.control import AskAccess, ControlLink, ServerAccess, Started
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.tools.commands import own_server
from pytriton.tools.commands.own_server import ask_own_server, own_headers, own_metrics_address
from tests.commands.conftest import TOKEN
from tests.free_ports import first_of_free_ports, free_ports


def access(ports=(8000, 8001, 8002), addresses=("127.0.0.1",) * 3, page_token="page", **headers):
    return ServerAccess(
        ports,
        addresses,
        headers.get("http", {"triton-access-token": "http"}),
        headers.get("grpc", {"triton-grpc-protocol-triton-access-token": "grpc"}),
        page_token,
    )


@pytest.fixture(params=["abstract", "file"])
def kind(request, monkeypatch, tmp_path):
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "file" else "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def port(kind):
    return first_of_free_ports(3)


@contextlib.contextmanager
def answering(port, answer):
    """A server that says this to whoever comes first, and closes the connection."""
    listener = rendezvous.listen(port)
    heard = []

    def serve():
        link = ControlLink(listener.accept()[0])
        heard.append(link.receive())
        if answer is not None:
            link.send(answer)
        link.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heard
        thread.join()
    finally:
        rendezvous.stop_listening(listener, port)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "grpc://127.0.0.1"])
def test_own_server_tells_what_opens_it(port, host):
    said = access(ports=(port, port + 1, port + 2))
    with answering(port, said) as heard:
        assert ask_own_server(parse_address(f"{host}:{port}")) == said

    assert heard == [AskAccess()]


@pytest.mark.parametrize("answer", [None, Started(1, 2, 3)])
def test_server_that_says_something_else_opens_nothing(port, answer):
    with answering(port, answer):
        assert ask_own_server(parse_address(f"localhost:{port}")) is None


def test_server_that_hangs_opens_nothing(port, monkeypatch):
    monkeypatch.setattr(own_server, "_TIMEOUT_S", 0.01)
    listener = rendezvous.listen(port)

    assert ask_own_server(parse_address(f"localhost:{port}")) is None
    rendezvous.stop_listening(listener, port)


def test_server_of_another_user_opens_nothing(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "is_same_user", lambda sock: False)
    listener = rendezvous.listen(port)

    assert ask_own_server(parse_address(f"localhost:{port}")) is None
    rendezvous.stop_listening(listener, port)


def test_port_that_nobody_serves_opens_nothing(port):
    assert ask_own_server(parse_address(f"localhost:{port}")) is None


def resolving(monkeypatch, **hosts):
    """Give hosts these addresses."""
    real = socket.getaddrinfo

    def resolve(host, *rest, **named):
        found = []
        for each in hosts.get(host, [host]):
            found += real(each, *rest, **named)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize("host", ["192.0.2.1", "elsewhere", "both"])
def test_server_on_another_address_is_not_asked_and_gets_no_token(monkeypatch, host):
    resolving(monkeypatch, elsewhere=["192.0.2.1"], both=["127.0.0.1", "192.0.2.1"])

    def connect(port, timeout_s):
        raise AssertionError("nobody was to be asked")

    monkeypatch.setattr(rendezvous, "connect", connect)
    address = parse_address(f"{host}:8000")

    assert ask_own_server(address) is None
    assert own_headers(access(addresses=("0.0.0.0",) * 3), address) == {}


@pytest.mark.parametrize(
    "address, headers",
    [
        ("http://127.0.0.1:8000", {"triton-access-token": "http"}),
        ("grpc://127.0.0.1:8001", {"triton-grpc-protocol-triton-access-token": "grpc"}),
        ("http://127.0.0.1:8002", {"triton-access-token": "page"}),
        ("grpc://127.0.0.1:8000", {}),
        ("http://127.0.0.1:8001", {}),
        ("http://127.0.0.1:8003", {}),
    ],
)
def test_each_port_gets_the_headers_of_its_protocol(address, headers):
    assert own_headers(access(), parse_address(address)) == headers


def test_token_of_the_page_opens_recordings_where_nothing_else_is_restricted():
    address = parse_address("http://127.0.0.1:8000")

    assert own_headers(access(http={}), address) == {"triton-access-token": "page"}
    assert own_headers(access(http={}, page_token=""), address) == {}


@pytest.mark.parametrize(
    "listens_on, host, is_sent",
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "127.3.2.1", True),
        ("localhost", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("::", "[::1]", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "[::1]", False),
        ("192.0.2.1", "127.0.0.1", False),
    ],
)
def test_token_is_sent_only_where_the_server_listens(listens_on, host, is_sent):
    found = own_headers(access(addresses=(listens_on,) * 3), parse_address(f"{host}:8000"))

    assert bool(found) == is_sent


def test_token_is_not_sent_to_a_name_that_may_lead_to_somebody_else(monkeypatch):
    resolving(monkeypatch, two=["127.0.0.2", "127.0.0.1"])
    (port,) = free_ports(1)
    said = access(ports=(port, 0, 0))
    address = parse_address(f"two:{port}")
    assert own_headers(said, address)

    with socket.create_server(("127.0.0.2", port)):
        assert own_headers(said, address) == {}


@pytest.mark.parametrize(
    "listens_on, host", [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1")]
)
def test_metrics_are_where_the_server_says(listens_on, host):
    said = access(ports=(1, 2, 9), addresses=("127.0.0.1", "127.0.0.1", listens_on))
    found = own_metrics_address(said, parse_address("127.0.0.1:1"))

    assert (found.host, found.port) == (host, 9)
    assert own_metrics_address(access(ports=(1, 2, 0)), parse_address("127.0.0.1:1")) is None


def test_header_that_a_person_gives_is_not_sent_twice():
    http = {"triton-access-token": "t", "key": "k"}
    found = own_headers(access(http=http), parse_address("127.0.0.1:8000"), ["Triton-Access-Token"])

    assert found == {"key": "k"}


def test_header_that_cannot_travel_is_left_out():
    http = {"key": "schlüssel", "other": "a\nb", "good": "g"}
    found = own_headers(access(http=http, page_token=""), parse_address("127.0.0.1:8000"))

    assert found == {"good": "g"}


def test_secrets_are_in_no_text_about_them():
    shown = repr(access(page_token="hush", http={"key": "hush"}, grpc={"key": "hush"}))

    assert "8000" in shown
    assert "hush" not in shown


def test_ports_of_this_user_are_found(port):
    with contextlib.ExitStack() as stack:
        for each in (port, port + 1):
            stack.callback(rendezvous.stop_listening, rendezvous.listen(each), each)

        assert {port, port + 1} <= set(rendezvous.ports_of_user())
    assert port not in rendezvous.ports_of_user()


# Commands


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_models_of_ones_own_server_are_listed_without_a_token(server, scheme, capsys):
    assert main(["models", "-u", getattr(server, scheme)]) == 0

    printed = capsys.readouterr()
    assert "AddSub" in printed.out
    assert printed.err == ""


def test_statistics_of_ones_own_server_are_read_without_a_token(server, capsys):
    where = ["-u", server.http, "--metrics-url", "localhost:1"]

    assert main(["top", "--once", "--interval", "0.1", *where]) == 0
    assert "AddSub" in capsys.readouterr().out


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_load_on_ones_own_server_has_a_server_part(server, scheme, capsys):
    port = server.port + (scheme == "grpc")
    line = f"perf AddSub -i {scheme} -u localhost:{port} --request-count 10 --allow-unstable"

    assert main(line.split()) == 0
    printed = capsys.readouterr()
    assert "Successful request count: 1" in printed.out
    assert "there is no Server part" not in printed.err


def test_wrong_token_that_a_person_gives_is_sent(server, capsys):
    where = ["-u", server.http, "--metrics-url", "localhost:1"]

    assert main(["models", *where, "--token", "wrong"]) == 1
    assert "only with its access token" in capsys.readouterr().err


def test_page_of_ones_own_server_has_a_link_with_its_token(server, capsys):
    for address in (server.http, server.grpc):
        assert main(["page", "-u", address]) == 0
        assert capsys.readouterr().out == f"http://{server.metrics}/#token={TOKEN}\n"

    assert main(["page", "--only-token", "-u", server.http]) == 0
    assert capsys.readouterr().out == f"{TOKEN}\n"


def test_page_is_opened_where_there_is_a_browser(server, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda link: not opened.append(link))

    assert main(["page", "--open", "-u", server.http]) == 0
    assert opened == [f"http://{server.metrics}/#token={TOKEN}"]
    assert capsys.readouterr().out == ""


def test_page_is_printed_where_there_is_no_browser(server, capsys, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda link: False)

    assert main(["page", "--open", "-u", server.http]) == 0
    assert capsys.readouterr().out == f"http://{server.metrics}/#token={TOKEN}\n"


def test_page_of_no_server_of_ones_own_says_which_there_are(port, capsys, monkeypatch):
    monkeypatch.setattr(rendezvous, "ports_of_user", lambda: [1, 2])

    assert main(["page", "-u", f"localhost:{port}"]) == 1
    assert capsys.readouterr().err.startswith(
        f"No server of this user on this machine has localhost:{port}. Servers of this user have "
        "the ports 1, 2. "
    )


def test_page_that_is_off_is_said_to_be(port, capsys):
    with answering(port, access(ports=(port, 0, 0), page_token="")):
        assert main(["page", "-u", f"localhost:{port}"]) == 1

    assert "has no page: it was turned off" in capsys.readouterr().err


def test_wrong_address_of_a_page_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["page", "-u", "ftp://x"])

    assert end.value.code == 2
    assert "expected an address such as localhost:8000" in capsys.readouterr().err
