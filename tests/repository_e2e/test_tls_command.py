# SPDX-License-Identifier: Apache-2.0
"""`tritonserver` with encrypted ports: its flags, SIGHUP, and files that are wrong."""

from __future__ import annotations

import contextlib
import http.client
import os
import pty
import signal
import ssl

import pytest

from tests.certificates import CertificateFolder
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.server_process import COMMAND

FRONT_ENDS = pytest.mark.parametrize("front_ends", [0, 2], ids=["one process", "front ends"])


@pytest.fixture(autouse=True)
def sighup_as_usual():
    """Undo what `nohup` does to a test run, which would hand its ignored SIGHUP down."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture
def certificates(tmp_path):
    folder = tmp_path / "certificates"
    folder.mkdir()
    return CertificateFolder(folder)


def flags_for(certificates, *more):
    files = certificates.server_files
    return [f"--tls-cert={files['tls_cert']}", f"--tls-key={files['tls_key']}", *more]


def status(certificates, port, path) -> int:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def reloads(server) -> int:
    return server.output.count("which was read again")


@FRONT_ENDS
def test_command_encrypts_its_ports_and_reads_certificates_again(
    start_server, certificates, front_ends
):
    flags = flags_for(certificates, f"--frontend-processes={front_ends}")
    server = start_server({}, flags=flags).await_ports()

    assert status(certificates, server.http_port, "/v2/health/ready") == 200
    assert status(certificates, server.metrics_port, "/metrics") == 200
    assert f"The page is at https://127.0.0.1:{server.metrics_port}/" in server.stdout

    server.signal(signal.SIGHUP)

    assert eventually(lambda: reloads(server) == 1), server.output

    certificates.replace()

    assert eventually(lambda: reloads(server) == 2), server.output
    assert status(certificates, server.http_port, "/v2/health/ready") == 200
    assert server.end() == 0


def test_server_without_tls_ends_with_sighup_as_before(start_server):
    server = start_server({}).await_ports()
    server.signal(signal.SIGHUP)

    assert server.exit_code() == -signal.SIGHUP


def test_wrong_key_is_told_before_models_are_loaded(start_server, certificates):
    key = certificates.client_key
    flags = [f"--tls-cert={certificates.server_files['tls_cert']}", f"--tls-key={key}"]
    server = start_server({}, flags=flags)

    assert server.exit_code() == 1
    assert f"TLS cannot use the key {key}: it does not belong to the certificate" in server.stderr


def test_closed_terminal_ends_the_server_in_order(tmp_path, certificates):
    log, models = tmp_path / "log", tmp_path / "models"
    models.mkdir()
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    command = [*COMMAND, f"--model-repository={models}", *ports, f"--log-file={log}"]
    pid, terminal = pty.fork()
    if not pid:
        os.execv(command[0], [*command, *flags_for(certificates)])
    text = lambda: log.read_text() if log.exists() else ""  # noqa: E731
    try:
        assert eventually(lambda: "The page is at" in text())
        os.kill(pid, signal.SIGHUP)  # the terminal is there: it means certificates
        assert eventually(lambda: "which was read again" in text())
    finally:
        os.close(terminal)
        if not eventually(lambda: "Waiting for in-flight requests" in text()):
            os.kill(pid, signal.SIGKILL)
        _, exit_status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(exit_status) == 0
