# SPDX-License-Identifier: Apache-2.0
"""Hostile models on a real server with `--sandbox`: none gets out, and the others are served."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import uuid

import numpy as np
import psutil
import pytest

from pytriton.runtime.executor.call_server import MAX_CALLERS
from pytriton.runtime.transport.frames import STANDARD_ERROR
from pytriton.runtime.transport.link import socket_pair
from tests.e2e.http_client import InferFailedError, infer
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import model
from tests.sandbox.attacks import ATTACKS, ENDING, FILES, LIMITS, hostile_model
from tests.sandbox.conftest import require, this_machine

pytestmark = pytest.mark.e2e
SECRET = "the-secret-of-the-operator"


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """What a hostile model would like to reach: files, ports, shared memory."""
    require("landlock", "seccomp")
    folder = tmp_path_factory.mktemp("surroundings")
    (folder / "home").mkdir()
    (folder / "home" / "id").write_text(SECRET)
    (folder / "server.key").write_text(SECRET)
    memory = pathlib.Path("/dev/shm") / f"client-{uuid.uuid4().hex}"
    memory.write_text(SECRET)
    abstract = uuid.uuid4().hex
    path = pathlib.Path(f"/tmp/pytriton-test-{abstract}")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as unnamed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        unix.bind(str(path))
        unix.listen()
        unnamed.bind(f"\0{abstract}")
        unnamed.listen()
        datagrams.bind(f"{path}-datagrams")
        yield {
            "home": str(folder / "home"),
            "key": str(folder / "server.key"),
            "shared_memory": str(memory),
            "port": tcp.getsockname()[1],
            "unix_socket": str(path),
            "datagram_socket": f"{path}-datagrams",
            "abstract_socket": abstract,
            "secret": SECRET,
        }
    memory.unlink()
    path.unlink()
    pathlib.Path(f"{path}-datagrams").unlink()


@pytest.fixture(scope="module")
def shared_server(start_module_server, surroundings):
    hostile = {name: hostile_model(attack) for name, attack in ATTACKS.items()}
    limited = {
        name: hostile_model(attack, sandbox)
        for name, (sandbox, attack) in {**LIMITS, **ENDING}.items()
    }
    models = {"echo": model(), "other": {**model(), "1/weights": SECRET}, **hostile, **limited}
    server = start_module_server(
        models,
        flags=(
            "--sandbox=on",
            "--model-control-mode=explicit",
            "--load-model=echo",
            "--exit-timeout-secs=5",
        ),
        environment={
            "HOME": surroundings["home"],
            "SOME_SECRET_KEY": SECRET,
            "DATABASE_URL": f"postgres://user:{SECRET}@host",
        },
    )
    (server.repository / "reads_through_a_symlink_in_its_folder" / "1" / "link").symlink_to(
        surroundings["key"]
    )
    return server.await_ready()


@pytest.fixture
def server(shared_server):
    """The server, which has to serve others after each attack, with the same processes."""
    processes = {shared_server.pid, *(zygote.pid for zygote in shared_server.zygotes())}
    yield shared_server
    assert shared_server.infer("echo", 5.0) == [5.0], shared_server.stderr[-2000:]
    assert processes <= {shared_server.pid, *(each.pid for each in shared_server.zygotes())}


@pytest.fixture
def ask(server, surroundings):
    """Loads a hostile model and returns its report; unloads it at the end."""
    loaded = []

    def ask(name):
        answer = server.load(name)
        loaded.append(name)
        assert answer.status == 200, answer.body
        facts = {
            **surroundings,
            "server": server.pid,
            "kind": _kind_of_channels(),
            "standard_error": STANDARD_ERROR.decode() + "model",
            "http_port": server.http_port,
            "repository": str(server.repository),
            "other_weights": str(server.repository / "other" / "1" / "weights"),
            "other_code": str(server.repository / "other" / "1" / "model.py"),
        }
        text = np.array([json.dumps(facts).encode()], np.object_)
        return infer(server.http_port, name, {"FACTS": text})["REPORT"].item().decode()

    yield ask
    for name in loaded:
        server.unload(name)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_of_a_model_is_contained(ask, server, name):
    before = _files(server) if name in FILES else None

    report = ask(name)

    assert report.startswith("contained: "), report
    assert SECRET not in report
    if before is not None:
        assert _files(server) == before


def _kind_of_channels():
    near, far = socket_pair()
    with near, far:
        return int(near.type)


def _files(server):
    folder = server.repository / "other"
    return {path: (path.stat().st_mode, path.read_bytes()) for path in folder.rglob("*.py")}


@pytest.mark.parametrize("name", LIMITS)
def test_attack_of_a_model_ends_at_a_limit(ask, name):
    if name == "bombs_with_forks":
        require("processes")

    report = ask(name)

    assert report.startswith("contained: "), report


@pytest.mark.parametrize("name", ENDING)
def test_attack_of_a_model_ends_its_own_worker_at_most(ask, server, name):
    before = server.descriptor_count()
    try:
        report = ask(name)
    except InferFailedError as failed:
        report = f"contained: {failed.text}"

    # What a worker writes to its own channel harms nobody else.
    allowed = ("contained: ",) if name == "fills_the_memory" else ("contained: ", "escaped: ")
    assert report.startswith(allowed), report
    assert server.infer("echo", 6.0) == [6.0]
    assert server.descriptor_count() < before + MAX_CALLERS + 100


DAEMON = """
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        threading.Event().wait()
    os.wait()
    escaped = 'a process of its own'
"""


def test_process_that_left_the_group_of_its_worker_ends_with_it(start_server, surroundings):
    server = start_server(
        {"daemon": hostile_model(DAEMON), "echo": model()},
        flags=("--sandbox=on", "--model-control-mode=explicit", "--load-model=*"),
    ).await_ready()
    text = np.array([json.dumps(surroundings).encode()], np.object_)
    infer(server.http_port, "daemon", {"FACTS": text})
    before = {each.pid for each in psutil.Process(server.pid).children(recursive=True)}

    server.unload("daemon")

    assert eventually(lambda: len(_alive(before)) == len(before) - 2)
    assert server.infer("echo", 1.0) == [1.0]


def _alive(pids):
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_scratch_folders_and_groups_are_removed(start_server, tmp_path):
    require("landlock", "seccomp")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    server = start_server(
        {"echo": model()}, flags=("--sandbox=on",), environment={"TMPDIR": str(temporary)}
    ).await_ready()
    during = [path for path in temporary.rglob("*") if path.is_dir()]
    groups = [folder for each in this_machine().groups.values() for folder in _groups(each, server)]

    assert server.end() == 0

    assert len(during) >= 2
    assert list(temporary.iterdir()) == []
    assert not any(os.path.exists(group) for group in groups)  # noqa: PTH110  texts


def _groups(folder, server):
    names = [f"pytriton-worker-{zygote.pid}-*" for zygote in server.zygotes()]
    return [str(path) for name in names for path in pathlib.Path(folder).glob(name)]
