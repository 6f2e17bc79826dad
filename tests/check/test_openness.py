# SPDX-License-Identifier: Apache-2.0
"""What `pytriton check --secure` says of an encrypted port."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

import pytest

from pytriton.client.kserve.address import parse_address
from pytriton.tools.check import openness
from pytriton.tools.check.report import State
from tests.certificates import Authority


@pytest.fixture
def address(tmp_path):
    """A port that makes one handshake with a certificate of an authority that nobody knows."""
    cert, key = Authority().issue().write(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def serve():
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield parse_address(f"https://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize("hides, state", [(True, State.OK), (False, State.NOTE)])
def test_texts_of_exceptions_are_noted(hides, state):
    finding = openness.exceptions_finding(hides=hides)

    assert finding.state is state
    assert ("use --hide-exceptions" in finding.value) is not hides


@pytest.mark.parametrize("has_authority", [False, True])
def test_certificate_of_an_unknown_authority_is_told_with_a_hint(address, tmp_path, has_authority):
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(Authority().pem)

    (finding,) = openness._certificate_findings(address, str(ca_file) if has_authority else None)

    assert (finding.name, finding.state) == ("certificate", State.FAILED)
    assert finding.value.startswith("clients that check it refuse it: ")
    assert finding.value.endswith("use --ca-file") is not has_authority
