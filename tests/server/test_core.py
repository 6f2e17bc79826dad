# SPDX-License-Identifier: Apache-2.0
"""The core of a server in this process: models of a repository without any port."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
import uvloop

from pytriton.base.dtypes import FP32
from pytriton.base.errors import ServerError, UnavailableError
from pytriton.base.messages import InferTensor
from pytriton.serving.server import repository_core
from pytriton.serving.server.core import Core
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.repository_core import make_core
from tests.e2e.waiting import DEADLINE_S
from tests.executor.worker_rig import until
from tests.fakes import RecordingSink, request
from tests.repository_e2e.model_files import code, config, model, write_model


def listening():
    connections = psutil.Process().net_connections("inet")
    return {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}


def options(path, **settings):
    return ServerOptions.from_triton_config({"model_repository": [str(path)], **settings})


async def infer(core, name, *row):
    """The answer of a model; an error that comes in its place is raised."""
    tensor = InferTensor("X", FP32, (1, len(row)), np.array([row], np.float32).tobytes())
    sink = RecordingSink()
    core.engine.infer(request(inputs={"X": tensor}, model_name=name), sink)
    await until(lambda: sink.final_count)
    if sink.errors:
        raise sink.errors[0]
    return np.frombuffer(sink.responses[0].outputs[0].data, np.float32).tolist()


def run(scenario):
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(scenario(loop), DEADLINE_S))
    finally:
        loop.close()


def test_model_of_a_repository_answers_in_this_process_without_a_port(tmp_path):
    write_model(tmp_path / "double", model(code("y = 2 * x")))
    before, children = listening(), set(psutil.Process().children(recursive=True))

    async def scenario(loop):
        core = await make_core(options(tmp_path), loop)
        await core.load()
        assert core.engine.is_ready()
        assert [entry.name for entry in core.control.index()] == ["double"]
        assert await infer(core, "double", 1.0, 2.5) == [2.0, 5.0]
        assert listening() <= before  # what another test left may be closed meanwhile
        await core.stop(DEADLINE_S)
        with pytest.raises(ServerError):
            await infer(core, "double", 1.0)

    run(scenario)

    assert set(psutil.Process().children(recursive=True)) <= children


def test_core_loads_and_unloads_as_a_client_would_ask(tmp_path):
    write_model(tmp_path / "same", model())

    async def scenario(loop):
        core = await make_core(options(tmp_path, model_control_mode="explicit"), loop)
        await core.load()
        with pytest.raises(ServerError, match="not found"):
            await infer(core, "same", 1.0)
        await core.control.load("same", None, {})
        assert await infer(core, "same", 7.0) == [7.0]
        await core.control.unload("same")
        with pytest.raises(ServerError):
            await infer(core, "same", 7.0)
        await core.stop(DEADLINE_S)

    run(scenario)


def test_core_that_stops_finishes_what_it_has_and_takes_nothing_new(tmp_path):
    gate = tmp_path / "gate"
    slow = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\ny = x"
    write_model(tmp_path / "models" / "slow", model(code(slow)))

    async def scenario(loop):
        core = await make_core(options(tmp_path / "models"), loop)
        await core.load()
        served = core.engine.lookup("slow")
        asked = asyncio.ensure_future(infer(core, "slow", 3.0))
        await until(lambda: served.running_count)
        stopping = asyncio.ensure_future(core.stop(DEADLINE_S))
        await asyncio.sleep(0)
        late = RecordingSink()
        core.engine.infer(request(model_name="slow"), late)
        assert [type(error) for error in late.refusals] == [UnavailableError]
        gate.touch()
        assert await asked == [3.0]
        await stopping

    run(scenario)


def test_core_without_repositories_has_one_cache_and_no_model():
    async def scenario(loop):
        core = Core(ServerOptions.from_triton_config({"response_cache_byte_size": 1 << 20}), loop)

        assert core.cache is not None
        assert core.control.index() == []
        assert list(core.custom_metrics()) == []
        await core.stop(0.0)
        assert core.engine.is_exiting

    run(scenario)


class FakeCluster:
    """Counts what a core does with its cluster."""

    def __init__(self):
        self.asked = self.closed = 0

    async def launcher(self):
        self.asked += 1
        raise UnavailableError("no cluster at 'head:6379'")

    def status(self):
        return f"asked {self.asked}"

    async def close(self):
        self.closed += 1


def test_cluster_is_made_for_the_first_model_that_runs_there_and_closed_with_the_core(tmp_path):
    write_model(tmp_path / "here", model())
    on_ray = 'parameters { key: "EXECUTOR" value { string_value: "ray" } }'
    write_model(tmp_path / "there", model(settings=f"{config()}\n{on_ray}"))
    made = []

    async def scenario(loop):
        settings = {"model_control_mode": "explicit", "ray_address": "head:6379"}
        core = await make_core(options(tmp_path, **settings), loop)
        core.make_ray = lambda ray, _: made.append((ray.address, FakeCluster())) or made[-1][1]
        await core.load()
        await core.control.load("here", None, {})
        assert core.cluster_status() is None
        with pytest.raises(ServerError, match="Unavailable: no cluster at 'head:6379'"):
            await core.control.load("there", None, {})
        assert core.cluster_status() == "asked 1"
        await core.stop(DEADLINE_S)

    run(scenario)

    assert [(address, cluster.closed) for address, cluster in made] == [("head:6379", 1)]


def test_server_without_a_cluster_imports_nothing_of_it():
    source = (
        "import sys, pytriton.serving.server.tritonserver\n"
        "import pytriton.serving.server.repository_core\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'ray' or "
        "name.startswith(('pytriton.runtime.cluster', 'pytriton.runtime.executor.remote'))))"
    )
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)

    assert found.stdout.decode().split() == []


FEATURES_THAT_ARE_OFF = (
    "pytriton.serving.engine.ensemble.ensemble_model",
    "pytriton.serving.engine.sequence.strategies",
    "pytriton.serving.server.access_log.connections",
    "pytriton.serving.server.cloud.apis",
    "pytriton.serving.server.cloud.vertex_ai",
    "pytriton.serving.server.codec.pool",
    "pytriton.serving.server.frontend.pool",
    "pytriton.serving.server.metrics.families",
    "pytriton.serving.server.metrics.page",
    "pytriton.serving.server.openai.api",
    "pytriton.serving.server.page.api",
    "pytriton.serving.server.tracing.tracing",
)


@pytest.mark.parametrize(
    "entry", ["pytriton.serving.server.main", "pytriton.serving.server.serving"]
)
def test_server_imports_nothing_of_features_that_are_off(entry):
    source = f"import sys, {entry}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)

    imported = set(found.stdout.decode().split())
    assert entry in imported
    assert imported.isdisjoint(FEATURES_THAT_ARE_OFF)


def test_repositories_are_closed_again_if_nobody_waits_for_them_any_more(tmp_path, monkeypatch):
    begun, may_go_on, closed = threading.Event(), threading.Event(), []

    class Finder:
        def close(self):
            closed.append(self)

    def open_finder(*_, **__):
        begun.set()
        assert may_go_on.wait(DEADLINE_S)
        return Finder()

    monkeypatch.setattr(repository_core, "open_finder", open_finder)

    async def scenario():
        making = asyncio.ensure_future(make_core(options(tmp_path), asyncio.get_running_loop()))
        await asyncio.to_thread(begun.wait, 60)
        making.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.wait([making])

        assert making.cancelled()
        assert len(closed) == 1

    asyncio.run(scenario())
