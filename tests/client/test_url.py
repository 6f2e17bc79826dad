# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.client.exceptions import PyTritonClientInvalidUrlError, PyTritonClientValueError
from pytriton.client.utils import TritonUrl


@pytest.mark.parametrize(
    "url,scheme,hostname,port",
    [
        ("localhost", "http", "localhost", 8000),
        ("localhost:9", "http", "localhost", 9),
        ("127.0.0.1:8000", "http", "127.0.0.1", 8000),
        ("http://h", "http", "h", 8000),
        ("grpc://h", "grpc", "h", 8001),
        ("HTTP://h:1", "http", "h", 1),
        ("h:8000/path", "http", "h", 8000),
        ("http://u:p@h:1", "http", "h", 1),
        ("grpc://[::1]:5", "grpc", "::1", 5),
    ],
)
def test_url_is_read(url, scheme, hostname, port):
    assert TritonUrl.from_url(url) == TritonUrl(scheme, hostname, port)


@pytest.mark.parametrize(
    "url, expected",
    [
        ("https://h", TritonUrl("http", "h", 443, uses_tls=True)),
        ("https://h:8000", TritonUrl("http", "h", 8000, uses_tls=True)),
        ("grpcs://[::1]:5", TritonUrl("grpc", "::1", 5, uses_tls=True)),
    ],
)
def test_url_of_an_encrypted_port_is_read(url, expected):
    found = TritonUrl.from_url(url)

    assert found == expected
    assert TritonUrl.from_url(found.with_scheme) == expected


@pytest.mark.parametrize(
    "url",
    [
        "ftp://localhost",
        "invalid_scheme://localhost",
        "localhost:port",
        "localhost:99999",
        "",
        "grpc://",
        "two words",
        ["localhost:8001"],
        None,
        "localhost:0",
        "http://http://localhost:8000",
        "grpc://a..b:8001",
        f"{'a' * 64}:8000",
    ],
)
def test_url_that_cannot_be_read_is_refused(url):
    with pytest.raises(PyTritonClientInvalidUrlError, match="Invalid url") as raised:
        TritonUrl.from_url(url)

    assert isinstance(raised.value, PyTritonClientValueError)


@pytest.mark.parametrize(
    "url,with_scheme,without_scheme",
    [
        ("localhost", "http://localhost:8000", "localhost:8000"),
        ("grpc://[::1]", "grpc://[::1]:8001", "[::1]:8001"),
    ],
)
def test_url_is_written(url, with_scheme, without_scheme):
    address = TritonUrl.from_url(url)

    assert (address.with_scheme, address.without_scheme) == (with_scheme, without_scheme)
    assert TritonUrl.from_url(address.with_scheme) == address
