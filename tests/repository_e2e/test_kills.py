# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the server, of the process that forks workers, or of both: no process is left."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pytriton.runtime.executor.launcher import START_SETTING
from tests.e2e.http_client import is_port_free
from tests.e2e.waiting import eventually
from tests.executor.tar_files import file_entry, pack
from tests.repository_e2e.model_files import HELD, HOLD, code, config, model
from tests.repository_e2e.server_process import COMMAND

SIX = "instance_group [{ kind: KIND_CPU count: 6 }]"
TWO = config("instance_group [{ kind: KIND_CPU count: 2 }]")
# What a model starts of its own ends with it.
PARENT = code(
    top="import subprocess",
    initialize=f"self.child = subprocess.Popen(['sleep', '600'])\n{HOLD}",
    finalize="self.child.kill(); self.child.wait()",
)

# Writes what its process is like to a file, which is there as a whole or not at all.
TELLS = code(
    top="import gc, json",
    initialize="""
    here = os.path.dirname(__file__)
    told = {
        "has the server's modules": "pytriton.serving.server.core" in sys.modules,
        "path": sys.path,
        "arguments": sys.argv,
        "main": [getattr(sys.modules["__main__"], each, None) for each in ("__file__", "__spec__")],
        "input": os.readlink("/proc/self/fd/0"),
        "open files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "collects garbage": gc.isenabled(),
        "environment": dict(os.environ),
        "ignores SIGTERM": signal.getsignal(signal.SIGTERM).__name__,
    }
    with open(os.path.join(here, "part"), "w") as file:
        json.dump(told, file)
    os.replace(os.path.join(here, "part"), os.path.join(here, "told.json"))
    """,
)


def repository():
    return {"plain": model(settings=TWO), "parent": model(PARENT)}


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_gone(server):
    return not server.descendants() and all(is_port_free(port) for port in server.ports)


@pytest.mark.parametrize("who", ["server", "both"])
def test_kill_leaves_no_process(start_server, who):
    models = {"plain": model(settings=TWO)} if who == "both" else repository()
    server = start_server(models).await_ready()
    assert len(server.workers()) == (2 if who == "both" else 3)
    zygote = server.zygote()

    server.process.kill()
    if who == "both":
        zygote.kill()
    server.process.wait()

    assert eventually(lambda: is_gone(server)), server.descendants()


def test_killed_zygote_is_replaced_with_all_its_workers(start_server):
    server = start_server(repository()).await_ready()
    zygote, workers = server.zygote(), server.workers()
    family = server.descendants()
    server.hold("parent")

    zygote.kill()

    assert eventually(lambda: server.get("/v2/health/ready").status != 200)
    server.let_go("parent")
    assert eventually(lambda: server.get("/v2/health/ready").status == 200), server.output
    assert server.infer("plain", 2.0) == [2.0]
    assert server.infer("parent", 2.0) == [2.0]
    assert eventually(lambda: not any(each.is_running() for each in (zygote, *workers)))
    assert eventually(lambda: len(server.descendants()) == len(family)), server.descendants()
    assert eventually(lambda: server.zombies() == [])
    assert server.end() == 0
    assert eventually(lambda: is_gone(server)), server.descendants()


def test_workers_of_the_first_zygote_are_like_those_of_one_that_is_a_program(start_server):
    with_files = ("bash", "-c", 'exec "$0" "$@" </dev/zero 7</dev/zero', *COMMAND)
    server = start_server({"told": model(TELLS)}, command=with_files).await_ready()
    told = server.repository / "told" / "1" / "told.json"
    first = json.loads(told.read_text())
    told.unlink()

    server.zygote().kill()
    assert eventually(told.exists), server.output
    second = json.loads(told.read_text())

    assert first == second
    assert not first["has the server's modules"]


def test_model_of_many_instances_outlives_the_zygote_again_and_again(start_server):
    server = start_server({"wide": model(settings=config(SIX))}).await_ready()

    for _ in range(3):
        zygote, workers = server.zygote(), server.workers()
        zygote.kill()
        assert eventually(lambda old=workers: not any(map(is_alive, old)))
        assert eventually(lambda: server.get("/v2/health/ready").status == 200), server.output
        assert eventually(lambda: len(server.workers()) == 6), server.output

    assert server.infer("wide", 2.0) == [2.0]
    assert server.index()["wide"]["state"] == "READY"
    assert server.end() == 0


def test_zygotes_that_are_killed_at_their_start_do_not_give_a_model_up(start_server):
    server = start_server({"plain": model()}).await_ready()
    killed = set()

    def kill_zygotes():
        for zygote in server.zygotes():
            if zygote.pid not in killed:
                killed.add(zygote.pid)
                zygote.kill()
        return len(killed) >= 14  # two for each start, of which five would be too many crashes

    assert eventually(kill_zygotes)
    assert eventually(lambda: server.get("/v2/health/ready").status == 200), server.output
    assert server.infer("plain", 2.0) == [2.0]


def test_load_survives_the_death_of_the_zygote(start_server):
    slow = model(code(initialize=HOLD), **HELD)
    server = start_server({"slow": slow}, flags=["--model-control-mode=explicit"]).await_ready()
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(server.load, "slow")
        assert eventually(lambda: psutil.Process(server.pid).children() and server.workers())
        zygote = server.zygote()
        zygote.kill()
        assert eventually(lambda: not is_alive(zygote))
        server.let_go("slow")

        assert loading.result().status == 200, server.output
    assert server.infer("slow", 2.0) == [2.0]


def test_model_that_is_given_up_has_no_process(start_server):
    wide = code(initialize=HOLD)
    server = start_server({"wide": model(wide, config(SIX))}).await_ready()
    (server.repository / "wide" / "1" / "hold").touch()  # those that are started again wait

    for worker in server.workers()[:5]:
        worker.kill()

    assert eventually(lambda: server.index()["wide"]["state"] == "UNAVAILABLE"), server.output
    assert eventually(lambda: server.workers() == []), server.output
    assert server.index()["wide"]["reason"].startswith("its instances ended 5 times within ")
    assert server.end() == 0


@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_workers_that_nobody_forked_end_with_the_server(start_server, ending):
    server = start_server({"plain": model()}, environment={START_SETTING: "spawn"}).await_ready()
    workers = server.model_processes()
    assert len(workers) == 1

    getattr(server.process, ending)()

    server.exit_code()
    assert eventually(lambda: not any(map(is_alive, workers)))
    assert eventually(lambda: is_gone(server))


def packed_environment(path):
    """An archive with an interpreter that is the one of this test."""
    script = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    entries = [file_entry("bin/activate"), file_entry("bin/python", script, mode=0o755)]
    return {"env.tar": Path(pack(path, entries, "w")).read_bytes()}


def test_unpacked_environment_of_a_killed_server_is_removed_by_the_next(start_server, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    parameter = "$$TRITON_MODEL_DIRECTORY/env.tar"
    settings = config(
        f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{parameter}" }} }}'
    )
    files = {**model(settings=settings), **packed_environment(tmp_path / "env.tar")}
    environment = {"TMPDIR": str(temporary)}

    def unpacked():
        return set(temporary.glob("pytriton-environments-*"))

    killed, other = (start_server({"packed": files}, environment=environment) for _ in range(2))
    assert killed.await_ready().infer("packed", 2.0) == [2.0]
    other.await_ready()
    assert len(unpacked()) == 2
    killed.process.kill()
    killed.process.wait()
    assert len(unpacked()) == 2

    next_server = start_server({"packed": files}, environment=environment).await_ready()

    assert next_server.end() == 0
    assert len(unpacked()) == 1  # that of the server that lives
    assert other.infer("packed", 2.0) == [2.0]
    assert other.end() == 0
    assert unpacked() == set()


def test_signal_leaves_no_process(start_server):
    server = start_server(repository()).await_ready()
    assert len(server.model_processes()) == 5  # a zygote, three workers, what one of them started

    assert server.end() == 0

    assert eventually(lambda: is_gone(server)), server.descendants()
