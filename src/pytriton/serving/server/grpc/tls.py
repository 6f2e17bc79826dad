# SPDX-License-Identifier: Apache-2.0
"""The TLS context of an encrypted gRPC endpoint."""

from __future__ import annotations

import ssl

from pytriton.base.errors import UnavailableError
from pytriton.serving.server.options.server_options import TlsOptions


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Returns a context for HTTP/2; mutual TLS requires a certificate of the client, too.

    Raises:
        UnavailableError: A file is missing or does not contain a valid certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    files = f"{options.server_cert} and {options.server_key}"
    try:
        context.load_cert_chain(options.server_cert, options.server_key)
        if options.mutual:
            files = str(options.root_cert)
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(options.root_cert)
    except (OSError, ssl.SSLError) as error:
        raise UnavailableError(
            f"gRPC cannot be encrypted with {files}: {error.strerror or error}"
        ) from error
    return context
