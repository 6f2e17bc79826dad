# SPDX-License-Identifier: Apache-2.0
"""Settings shown as Triton's command line."""

from __future__ import annotations

import pathlib
import shlex

import pytest

from pytriton.base.triton_config import TritonServerConfig
from pytriton.exceptions import PyTritonError
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig


def test_flags_are_written_with_dashes_and_repeated_for_lists() -> None:
    config = TritonServerConfig(
        {"http_port": 8015, "cache-config": ["local,size=1", "local,x=2"], "log_file": None}
    )

    assert config.to_args_list() == [
        *("--http-port", "8015"),
        *("--cache-config", "local,size=1"),
        *("--cache-config", "local,x=2"),
    ]


def test_line_survives_a_shell() -> None:
    config = TritonServerConfig({"id": "my server", "log_file": pathlib.Path("/x/y z.log")})

    assert shlex.split(config.to_cli_string()) == ["--id=my server", "--log-file=/x/y z.log"]


def test_unset_flags_are_absent_and_read_as_none() -> None:
    config = TritonServerConfig({"http_port": None, "grpc_port": 1})

    assert "http-port" not in config
    assert "grpc_port" in config
    assert config["http_port"] is None
    assert config.get("http-port", 8000) == 8000


def test_unknown_flag_is_refused() -> None:
    with pytest.raises(PyTritonError, match="flag of the server, got 'htp_port'"):
        TritonServerConfig({"htp_port": 1})


def test_triton_shows_its_restrictions() -> None:
    security = TritonSecurityConfig(access_token="secret", restricted_endpoints=["logging"])
    triton = Triton(config=TritonConfig(http_port=8015), security_config=security)
    line = triton._triton_server_config.to_cli_string()

    assert "--http-port=8015" in line
    assert "--http-restricted-api=logging:triton-access-token=secret" in line
    assert "--grpc-restricted-protocol=logging:triton-access-token=secret" in line
