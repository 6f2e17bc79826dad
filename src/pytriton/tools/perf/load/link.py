# SPDX-License-Identifier: Apache-2.0
"""Opens connections to the server, plain or encrypted, that do not block once they are open."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import ssl
import tempfile
from collections.abc import Callable

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.plan import Tls

CONNECT_TIMEOUT_S = 5.0
# A connection that has nothing to read or no room to write now.
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Receive = Callable[[int], bytes]


class Dialer:
    """The way to a server.

    Args:
        host: Its host.
        port: Its port.
        tls: How connections are encrypted; None: they are not.
        protocols: What is offered with TLS, as `h2` for gRPC.
    """

    def __init__(self, host: str, port: int, tls: Tls | None, protocols: list[str]) -> None:
        self._host = host
        self._port = port
        self._context = None if tls is None else tls_context(tls, protocols)

    def open(self) -> socket.socket:
        """Connect, and make the connection one that does not block.

        Raises:
            OSError: it cannot be made.
        """
        plain = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened = plain
            if self._context is not None:
                opened = self._context.wrap_socket(plain, server_hostname=self._host)
            opened.setblocking(False)
        except BaseException:
            plain.close()
            raise
        return opened


def receiver(connection: socket.socket) -> Receive:
    """What reads from a connection; of an encrypted one, also what is decrypted already."""
    if not isinstance(connection, ssl.SSLSocket):
        return connection.recv
    encrypted = connection

    def receive(size: int) -> bytes:
        data = encrypted.recv(size)
        while encrypted.pending():  # the operating system would not say that this can be read
            data += encrypted.recv(size)
        return data

    return receive


def tls_context(tls: Tls, protocols: list[str]) -> ssl.SSLContext:
    """The settings of encrypted connections.

    Raises:
        LoadError: a file of the settings cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.check_hostname = tls.verify_peer and tls.verify_host
        if not tls.verify_peer:
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate_file is not None:
            _load_certificate(context, tls)
    except (OSError, ValueError) as error:
        files = (tls.ca_file, tls.certificate_file, tls.key_file)
        named = ", ".join(name for name in files if name)
        raise GeneratorError(f"expected certificates and keys in {named}: {error}") from error
    context.set_alpn_protocols(protocols)
    return context


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    assert tls.certificate_file is not None
    with contextlib.ExitStack() as stack:
        certificate = tls.certificate_file
        if tls.certificate_type.upper() == "DER":
            text = ssl.DER_cert_to_PEM_cert(pathlib.Path(certificate).read_bytes())
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))
            file.write(text)
            file.flush()
            certificate = file.name
        if tls.key_file is not None and tls.key_type.upper() != "PEM":
            raise GeneratorError(
                f"expected a private key in PEM, got {tls.key_type}: {tls.key_file}"
            )
        context.load_cert_chain(certificate, tls.key_file)
