# SPDX-License-Identifier: Apache-2.0
"""What a TLS context needs; handshakes are tested with real clients."""

from __future__ import annotations

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.serving.server.grpc.api import tls_context
from pytriton.serving.server.options.server_options import TlsOptions


def test_missing_files_are_named(tmp_path):
    options = TlsOptions(server_cert=str(tmp_path / "no.pem"), server_key=str(tmp_path / "no.key"))

    with pytest.raises(UnavailableError, match=r"no\.pem and .*no\.key: No such file"):
        tls_context(options)


def test_files_without_certificates_are_named(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")

    with pytest.raises(UnavailableError, match="cannot be encrypted with"):
        tls_context(TlsOptions(server_cert=str(empty), server_key=str(empty)))
