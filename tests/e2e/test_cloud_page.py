# SPDX-License-Identifier: Apache-2.0
"""The page about repositories in object stores: its commands run, its addresses and files fit."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from pytriton.serving.repository.remote.location import (
    choose_access,
    read_credentials,
    read_location,
)
from tests import s3_server
from tests.free_ports import free_ports
from tests.snippets import snippets

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cloud_repositories.md"
COMMANDS = r"trap 'kill $(jobs -p); wait' EXIT"


@pytest.mark.skipif(bool(s3_server.MISSING), reason=s3_server.MISSING)
def test_commands_of_the_page_serve_a_model_from_a_bucket(tmp_path):
    (script,) = (block.text for block in snippets(PAGE, "bash"))
    s3_port, http_port, grpc_port, metrics_port = map(str, free_ports(4))
    script = re.sub(r"^pip install .*$", COMMANDS, script, flags=re.MULTILINE)
    script = script.replace("5000", s3_port).replace("8000", http_port)
    script = script.replace(
        "tritonserver ",
        f"python -m pytriton.server --grpc-port={grpc_port} --metrics-port={metrics_port} ",
    )
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-ec", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    assert '"outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1.0,2.0]}]' in output
    assert process.returncode == 0
    assert not list(tmp_path.glob("pytriton-models-*"))


def test_addresses_of_the_page_are_understood():
    addresses = set(re.findall(r"`((?:s3|gs|as)://[^`\s]+/path)`", PAGE.read_text()))

    assert len(addresses) == 6
    for address in addresses:
        assert read_location(address.replace("port", "9000")).root == (
            "container/path" if address.startswith("as") else "bucket/path"
        )


def test_extras_of_the_page_exist():
    named = set(re.findall(r"pytriton\[(\w+)\]", PAGE.read_text()))
    pyproject = (ROOT / "pyproject.toml").read_text()

    assert named == {"s3", "gcs", "azure", "cloud"}
    assert all(re.search(rf"^{name} = \[", pyproject, re.MULTILINE) for name in named)


def test_credential_file_of_the_page_is_read(tmp_path):
    (block,) = snippets(PAGE, "json")
    file = tmp_path / "credentials.json"
    file.write_text(block.text)
    credentials = read_credentials({"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})

    assert credentials == json.loads(block.text)
    minio = read_location("s3://https://minio.example.com:9000/models/a")
    assert "client_kwargs" not in choose_access(minio, credentials, {}).options
    other = read_location("s3://other")
    assert choose_access(other, credentials, {}).options["client_kwargs"] == {
        "region_name": "eu-central-1"
    }
