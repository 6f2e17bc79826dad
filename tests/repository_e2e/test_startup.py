# SPDX-License-Identifier: Apache-2.0
"""What the command says and does until it serves."""

from __future__ import annotations

import contextlib
import re
import socket

import pytest

from tests.e2e.http_client import is_port_free
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import code, model

pytestmark = pytest.mark.real_start  # what a start says and does is seen as users have it

BROKEN = model("raise RuntimeError('no weights')")


CHATTY = model(code("y = x + 1", initialize="pb_utils.Logger.log_verbose('chatty')"))
TOLERANT = "--exit-on-error=false"
SERVERS = {
    "good": ({"add": CHATTY}, []),
    "verbose": ({"add": CHATTY}, ["--log-verbose=1"]),
    "broken": ({"good": model(), "bad": BROKEN}, []),
    "tolerant": ({"good": model(), "bad": BROKEN}, [TOLERANT]),
    "file": ({"m": model(), "bad": BROKEN}, [TOLERANT, "--log-file=server.log"]),
}


@pytest.fixture(scope="module")
def servers(start_module_server):
    """A server for each way to start, all of them started at once."""
    return {
        name: start_module_server(models, flags=flags) for name, (models, flags) in SERVERS.items()
    }


@pytest.fixture
def server(servers):
    """The one without a fault."""
    return servers["good"].await_ready()


def test_log_has_the_tables_of_triton(server):
    assert re.search(r"\| add +\| 1 +\| READY +\|", server.stdout)
    assert re.search(r"\| python +\| \S+/python_backend", server.stdout)
    assert re.search(r"\| model_control_mode +\| \S*NONE", server.stdout, re.IGNORECASE)


def test_log_lines_are_those_of_triton(server):
    lines = [line for line in server.stdout.splitlines() if line[:1] not in {"|", "+", ""}]

    # Where the message is empty, a table follows.
    pattern = rf'I\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {server.pid} \S+:\d+\] (".*")?'
    assert [line for line in lines if not re.fullmatch(pattern, line)] == []
    text = "\n".join(lines)
    assert text.index("loading: add:1") < text.index("successfully loaded 'add'")
    assert text.index("successfully loaded 'add'") < text.index("Started GRPCInferenceService")
    assert f'"Started HTTPService at 127.0.0.1:{server.http_port}"' in text
    assert f'"Started Metrics Service at 127.0.0.1:{server.metrics_port}"' in text
    assert server.stderr == ""


def test_ports_stay_closed_until_models_are_loaded(start_server, tmp_path):
    gate = tmp_path / "gate"
    wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    server = start_server({"slow": model(code(initialize=wait))})
    assert eventually(lambda: "loading: slow:1" in server.stdout)
    assert eventually(server.workers)

    is_closed = [is_port_free(port) for port in server.ports]
    gate.touch()

    assert is_closed == [True, True, True]
    assert server.await_ready().infer("slow") == [1.0]


def test_broken_model_ends_the_command(servers):
    server = servers["broken"]

    assert server.exit_code() == 1
    last = "error: creating server: Internal - failed to load all models"
    assert re.search(rf"\n  bad version 1: .*no weights.*\n{last}$", server.stderr.rstrip())
    assert re.search(r"\| bad +\| 1 +\| UNAVAILABLE: .*no weights", server.stdout)
    assert server.descendants() == []
    assert all(is_port_free(port) for port in server.ports)


def test_broken_model_beside_others_with_exit_on_error_off(servers):
    server = servers["tolerant"].await_ports()

    assert server.infer("good", 7.0) == [7.0]
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200
    assert "no weights" in server.index()["bad"]["reason"]


def test_port_in_use_ends_the_command(start_server):
    servers = []
    with contextlib.ExitStack() as stack:
        for taken in range(3):
            ports = free_ports(3)
            stack.enter_context(socket.create_server(("127.0.0.1", ports[taken])))
            servers.append(start_server({"m": model()}, ports=ports))

        codes = [server.exit_code() for server in servers]

    assert codes == [1, 1, 1]
    for taken, server in enumerate(servers):
        assert f"127.0.0.1:{server.ports[taken]}" in server.stderr
        assert server.descendants() == []


def test_log_file_takes_all(servers):
    server = servers["file"]
    log = server.folder / "server.log"
    assert eventually(lambda: log.exists() and "Started Metrics" in log.read_text())

    text = log.read_text()
    assert "successfully loaded 'm'" in text
    assert "no weights" in text
    assert server.output == ""


def test_log_verbose_reaches_models(servers):
    assert "chatty" in servers["verbose"].await_ready().stdout
    assert "chatty" not in servers["good"].await_ready().output
