# SPDX-License-Identifier: Apache-2.0
"""A server answers the probes of the manifest and the health check of the image, and ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.certificates import CertificateFolder
from tests.e2e.waiting import DEADLINE_S
from tests.test_containers import argument_of, pod_of_manifest


def check_health(server) -> int:
    """The exit code of the health check of the image, at the port of this server."""
    python, *arguments = json.loads(argument_of("HEALTHCHECK").partition("CMD ")[2])
    port = str(server.ports[0])
    command = [sys.executable, *(each.replace("8000", port) for each in arguments)]

    assert python == "python"
    assert any(port in each for each in command)
    return subprocess.run(command, check=False, timeout=DEADLINE_S).returncode


def test_probes_and_signals_of_the_manifest_reach_the_server(start_server):
    others = (
        "--model-repository", "--http-port", "--grpc-port", "--metrics-port", "--exit-grace-secs"
    )  # fmt: skip
    container = pod_of_manifest()["containers"][0]
    flags = [argument for argument in container["args"] if not argument.startswith(others)]
    server = start_server({}, flags=flags).await_ready()
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    statuses = [server.get(probe["httpGet"]["path"]).status for probe in probes]
    health = check_health(server)
    is_ended = server.end()

    assert statuses == [200, 200, 200]
    assert health == 0
    assert is_ended == 0
    assert check_health(server) != 0


@pytest.mark.parametrize("wants_certificates", [False, True])
def test_image_with_encrypted_ports_is_healthy(start_server, tmp_path, wants_certificates):
    certificates = CertificateFolder(tmp_path)
    files = certificates.server_files
    flags = [f"--tls-cert={files['tls_cert']}", f"--tls-key={files['tls_key']}"]
    if wants_certificates:
        flags.append(f"--tls-client-ca={certificates.ca}")
    server = start_server({}, flags=flags).await_ports()
    health = check_health(server)
    server.end()

    assert health == 0
    assert check_health(server) != 0
