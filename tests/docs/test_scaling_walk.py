# SPDX-License-Identifier: Apache-2.0
"""The page about clusters, gone through on two nodes of Ray that are processes of this machine."""

from __future__ import annotations

import importlib.util
import pathlib
import tempfile

import psutil
import pytest

from tests.docs.page_walk import PageWalk
from tests.e2e.waiting import remove_folder
from tests.free_ports import free_ports

PAGE = pathlib.Path(__file__).parents[2] / "docs/scaling.md"
END_S = 180


@pytest.fixture
def ray_folder():
    """A folder for everything of Ray; the nodes that were started in it are ended by their ids."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    # Its path is short, because sockets are in it.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    pids = folder / "pids"
    pids.touch()
    yield folder
    _end([int(pid) for pid in pids.read_text().split()])
    remove_folder(folder)


def _end(pids):
    nodes = [psutil.Process(pid) for pid in reversed(pids) if psutil.pid_exists(pid)]
    processes = [*nodes, *(child for node in nodes for child in node.children(recursive=True))]
    for node in nodes:
        node.terminate()
    _, alive = psutil.wait_procs(processes, END_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, END_S)


@pytest.mark.e2e
def test_page_goes_as_it_says(tmp_path, ray_folder):
    http, grpc, metrics, ray_port, client_port = free_ports(5)
    environment = {
        "HOME": str(tmp_path),  # where the token is
        "RAY_ADDRESS": f"127.0.0.1:{ray_port}",
        "RAY_AUTH_MODE": "token",
        "RAY_TMPDIR": str(ray_folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "WALK_RAY_PORT": str(ray_port),
        "WALK_RAY_CLIENT_PORT": str(client_port),
    }
    folder = tmp_path / "work"
    folder.mkdir()
    walk = PageWalk(PAGE, folder, (http, grpc, metrics), environment)

    walk.run()

    assert not walk.misfits(), "\n".join(walk.misfits())
    assert [step.command.split()[0] for step in walk.steps].count("ray") == 4
