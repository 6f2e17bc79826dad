# SPDX-License-Identifier: Apache-2.0
"""What the command says and does until it serves."""

from __future__ import annotations

import pytest

from tests.e2e.http_client import is_port_free
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, model

pytestmark = pytest.mark.real_start  # what a start says and does is seen as users have it

BROKEN = model("raise RuntimeError('no weights')")


CHATTY = model(code("y = x + 1", initialize="pb_utils.Logger.log_verbose('chatty')"))
TOLERANT = "--exit-on-error=false"
SERVERS = {
    "good": ({"add": CHATTY}, []),
    "verbose": ({"add": CHATTY}, ["--log-verbose=1"]),
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


def test_broken_model_beside_others_with_exit_on_error_off(servers):
    server = servers["tolerant"].await_ports()

    assert server.infer("good", 7.0) == [7.0]
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200
    assert "no weights" in server.index()["bad"]["reason"]


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
