# SPDX-License-Identifier: Apache-2.0
"""Which address a request is from, where proxies pass it on."""

from __future__ import annotations

import pytest

from pytriton.serving.server.access.client_addresses import TrustedProxies, parse_proxies

PROXIES = TrustedProxies(("10.0.0.0/8", "127.0.0.1/32", "fd00::/8"))
PEER = "10.0.0.1"


def client(listed=None, forwarded=None, *, peer=PEER, proxies=PROXIES):
    headers = {b"x-forwarded-for": listed, b"forwarded": forwarded}
    given = {name: text.encode("latin-1") for name, text in headers.items() if text is not None}
    return proxies.client_of(peer, given.get)


@pytest.mark.parametrize(
    "listed,found",
    [
        ("203.0.113.7", "203.0.113.7"),
        ("1.1.1.1, 203.0.113.7", "203.0.113.7"),  # the client wrote the first one
        ("203.0.113.7, 10.2.3.4", "203.0.113.7"),
        ("1.1.1.1, 203.0.113.7, 10.2.3.4, fd00::1", "203.0.113.7"),
        ("10.9.9.9, 10.2.3.4", "10.9.9.9"),  # all are proxies: the one that began
        ("203.0.113.7:51000", "203.0.113.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("2001:DB8:0::7", "2001:db8::7"),
        ("[2001:db8::7]:443", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, ::ffff:10.0.0.3", "203.0.113.7"),
        (" 203.0.113.7 ,, ", "203.0.113.7"),
        ("", PEER),
        (",", PEER),
        ("unknown", PEER),
        ("203.0.113.7, unknown", PEER),
        ("unknown, 10.2.3.4", "10.2.3.4"),
        ("203.0.113.7, 999.1.1.1", PEER),
        ("203.0.113.7; 1.1.1.1", PEER),
        ("fe80::1%eth0", PEER),
        ("fe80::1%\r\nline", PEER),  # Python's addresses take any text after a %
        ("\xb9.1.1.1", PEER),
    ],
)
def test_right_most_address_that_is_no_proxy_is_the_client(listed, found):
    assert client(listed) == found


@pytest.mark.parametrize(
    "forwarded,found",
    [
        ("for=203.0.113.7", "203.0.113.7"),
        ("For=203.0.113.7;Proto=https;By=10.0.0.1", "203.0.113.7"),
        ('proto=https; for="203.0.113.7:4711" ;host="a.example"', "203.0.113.7"),
        ('for="[2001:db8::7]:4711"', "2001:db8::7"),
        ("for=1.1.1.1, for=203.0.113.7", "203.0.113.7"),
        ("for=203.0.113.7, for=10.2.3.4;by=10.0.0.1", "203.0.113.7"),
        ('for="_hidden"', PEER),
        ("for=unknown", PEER),
        ("proto=https", PEER),
        ("for=203.0.113.7;for=1.1.1.1", PEER),
        ("for=203.0.113.7;", "203.0.113.7"),
        # A name of a host that the client chose, quoted by the proxy, must not look like elements.
        ('for=203.0.113.7;host="x, for=1.1.1.1"', PEER),
        ('for=203.0.113.7;host="x, for=1.1.1.1;a=b"', PEER),
        ('for=203.0.113.7;host="x, for=1.1.1.1, a=b";proto=http', PEER),
        ('for=203.0.113.7;host="x\\", for=1.1.1.1;a=\\""', PEER),
    ],
)
def test_forwarded_names_the_client_too(forwarded, found):
    assert client(forwarded=forwarded) == found


def test_header_of_everybody_else_is_ignored_and_not_read():
    def header(name):
        raise AssertionError(f"{name} was read")

    assert client("1.1.1.1", peer="203.0.113.9") == "203.0.113.9"
    assert PROXIES.client_of("203.0.113.9", header) == "203.0.113.9"
    assert PROXIES.client_of("", header) == ""


def test_request_of_a_proxy_itself_is_from_the_proxy():
    assert client() == PEER


@pytest.mark.parametrize("peer", ["::ffff:10.0.0.1", "fd00::5%eth0", "127.0.0.1"])
def test_proxy_is_known_in_every_form_of_its_address(peer):
    assert client("203.0.113.7", peer=peer) == "203.0.113.7"


def test_headers_that_differ_are_not_believed():
    same = client("203.0.113.7", "for=203.0.113.7")
    other = client("203.0.113.7", "for=1.1.1.1")

    assert same == "203.0.113.7"
    assert other == PEER


def test_long_list_is_read_from_its_end_only():
    ends = client("1.1.1.1, " * 5000 + "203.0.113.7")
    proxies_only = client("10.0.0.9, " * 5000)
    cut = client("1" * 2000)

    assert ends == "203.0.113.7"
    assert proxies_only == "10.0.0.9"
    assert cut == PEER


@pytest.mark.parametrize(
    "texts,networks",
    [
        ([], ()),
        (["10.0.0.0/8,127.0.0.1"], ("10.0.0.0/8", "127.0.0.1/32")),
        ([" 10.0.0.0/8 ", "fd00::1"], ("10.0.0.0/8", "fd00::1/128")),
        (["10.0.0.0/255.0.0.0"], ("10.0.0.0/8",)),
        (["::ffff:10.0.0.0/104", "10.0.0.0/8"], ("10.0.0.0/8",)),
    ],
)
def test_addresses_and_networks_are_proxies(texts, networks):
    assert parse_proxies(texts) == networks


@pytest.mark.parametrize(
    "text,problem",
    [
        ("", "such as 127.0.0.1, 10.0.0.0/8 or fd00::/8, got ''"),
        ("10.0.0.0/8,", "got ''"),
        ("proxy.example.com", "got 'proxy.example.com'"),
        ("10.0.0.0/33", "got '10.0.0.0/33'"),
        ("10.0.0.0/8/9", "got '10.0.0.0/8/9'"),
        ("fe80::1%eth0", "got 'fe80::1%eth0'"),
        ("10.0.0.1/8", "expected a network such as 10.0.0.0/8, got '10.0.0.1/8'"),
        ("0.0.0.0/0", "every client could choose its address"),
        ("::/0", "every client could choose its address"),
        ("::ffff:0:0/96", "every client could choose its address"),
        ("*", r"got '\*'"),
    ],
)
def test_what_is_no_proxy_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_proxies([text])
