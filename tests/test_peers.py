# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest

from tests import peers
from tests.free_ports import free_ports


def test_server_that_ends_while_it_starts_is_started_again(tmp_path):
    (port,) = free_ports(1)
    answer = tmp_path / "v2" / "models" / "last" / "ready"
    answer.parent.mkdir(parents=True)
    answer.touch()
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 --directory {tmp_path} {port}"
    command = ["sh", "-c", f"mkdir {tmp_path}/life || exec {serve}; exit 1"]

    with peers.serving(command, port, "last"):
        assert (tmp_path / "life").is_dir()


def test_server_that_never_starts_says_why():
    (port,) = free_ports(1)

    with (
        pytest.raises(RuntimeError, match=r"not ready: no luck\nno luck\n"),
        peers.serving(["sh", "-c", "echo no luck; exit 1"], port, "last", starts=2),
    ):
        pass
