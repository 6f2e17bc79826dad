# SPDX-License-Identifier: Apache-2.0
"""The health check of container images: `python -m pytriton.tools.check.alive HOST:PORT/PATH`.

It finds out itself whether the port is encrypted, as an image does not know the server's settings.
"""

from __future__ import annotations

import http.client
import ssl
import sys

_TIMEOUT_S = 2.0  # for each of two questions; images allow 5 seconds for both
_OK = 200
# What TLS 1.3 and 1.2 say to clients without a certificate. Whoever wants to see one is alive.
_WANTS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")


def is_alive(address: str) -> bool:
    """Returns whether the server at HOST:PORT/PATH of this machine answers, encrypted or not."""
    authority, _, path = address.partition("/")
    # It is the server of the same container: there is nobody whom a certificate could unmask.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = http.client.HTTPConnection(authority, timeout=_TIMEOUT_S)
    encrypted = http.client.HTTPSConnection(authority, timeout=_TIMEOUT_S, context=context)
    return _answers(plain, f"/{path}") or _answers(encrypted, f"/{path}")


def _answers(connection: http.client.HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        return connection.getresponse().status == _OK
    except ssl.SSLError as error:
        return (error.reason or "").endswith(_WANTS_CERTIFICATE)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not is_alive(sys.argv[1]))
