# SPDX-License-Identifier: Apache-2.0
"""A server with the arguments of the manifest answers the probes, and ends on SIGTERM."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.test_containers import argument_of, pod_of_manifest


def test_probes_and_signals_of_the_manifest_reach_the_server(start_server):
    others = (
        "--model-repository", "--http-port", "--grpc-port", "--metrics-port", "--exit-grace-secs"
    )  # fmt: skip
    container = pod_of_manifest()["containers"][0]
    flags = [argument for argument in container["args"] if not argument.startswith(others)]
    server = start_server({}, flags=flags).await_ready()
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    statuses = [server.get(probe["httpGet"]["path"]).status for probe in probes]
    command = json.loads(argument_of("HEALTHCHECK").partition("CMD ")[2])
    script = command[2].replace("127.0.0.1:8000", f"127.0.0.1:{server.ports[0]}")
    check = subprocess.run([sys.executable, "-c", script], check=False)
    is_ended = server.end()

    assert statuses == [200, 200, 200]
    assert check.returncode == 0
    assert is_ended == 0
    assert subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False
    ).returncode
