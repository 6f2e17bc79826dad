# SPDX-License-Identifier: Apache-2.0
"""The rate limiter of a real server: models that share resources, and those that cannot load."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.http_client import InferFailedError
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import HELD, HOLD, code, config, model

LIMITED = ("--rate-limit=execution_count", "--exit-on-error=false")
# Fails if another model is inside.
GATE = """
gate = os.path.join(os.path.dirname(__file__), "..", "..", "gate")
os.close(os.open(gate, os.O_CREAT | os.O_EXCL))
time.sleep(0.002)
os.unlink(gate)
y = x
"""
DIES = f"""
open(os.path.join(os.path.dirname(__file__), "inside"), "w").close()
{HOLD}
os.kill(os.getpid(), signal.SIGKILL)
"""

CALLER = """
call = pb_utils.InferenceRequest(
    model_name="leaf", inputs=request.inputs(), requested_output_names=["Y"]
)
answer = call.exec()
if answer.has_error():
    raise pb_utils.TritonModelException(answer.error().message())
y = answer.output_tensors()[0].as_numpy()
"""


def group(needs: str, more: str = "") -> str:
    return f"instance_group [{{ kind: KIND_CPU {more} rate_limiter {{ {needs} }} }}]"


def limited(needs: str, source: str | None = None, more: str = "", **files: str):
    return model(source, config(group(needs, more)), **files)


def shared(count: int) -> str:
    return f'resources {{ name: "R" global: true count: {count} }}'


def infer_side_by_side(server, names, count=60):
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(server.infer, names[n % len(names)], n) for n in range(count)]
        return [future.result() for future in futures]


def test_models_that_share_a_resource_never_run_at_the_same_time(start_server):
    models = {name: limited(shared(1), code(GATE), "count: 2") for name in ("one", "two")}
    server = start_server(models, flags=LIMITED).await_ready()

    answers = infer_side_by_side(server, ["one", "two"])

    assert answers == [[float(number)] for number in range(60)]


def test_models_run_at_the_same_time_without_the_limiter(start_server):
    models = {
        "one": limited(shared(1), code(HOLD + "\ny = x"), **HELD),
        "two": limited(shared(1)),
    }
    server = start_server(models).await_ready()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(server.infer, "one")

        assert server.infer("two") == [1.0]

        server.let_go("one")

        assert held.result() == [1.0]


def test_dead_instance_gives_its_resources_to_others(start_server):
    models = {"dying": limited(shared(1), code(DIES), **HELD), "other": limited(shared(1))}
    server = start_server(models, flags=LIMITED).await_ready()
    inside = server.repository / "dying" / "1" / "inside"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.infer, "dying")
        assert eventually(inside.exists)
        second = pool.submit(server.infer, "other")
        server.let_go("dying")

        assert second.result() == [1.0]
        with pytest.raises(InferFailedError, match="is not healthy"):
            first.result()


def test_resources_are_free_again_when_a_model_is_replaced(start_server):
    models = {"one": limited(shared(1), code(GATE)), "two": limited(shared(1), code(GATE))}
    flags = [*LIMITED, "--model-control-mode=explicit", "--load-model=*"]
    server = start_server(models, flags=flags).await_ready()
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(infer_side_by_side, server, ["one", "two"])
        for _ in range(3):
            server.write("one", models["one"])
            assert server.load("one").status == 200

        assert answers.result() == [[float(number)] for number in range(60)]

    assert server.unload("two").status == 200
    assert server.infer("one") == [1.0]


def test_failed_load_keeps_no_resources(start_server):
    models = {
        "broken": limited(shared(4), code(initialize="raise ValueError('no')")),
        "device": limited('resources { name: "R" count: 1 }'),
    }
    flags = [*LIMITED, "--model-control-mode=explicit"]
    server = start_server(models, flags=flags).await_ports()

    assert "ValueError: no" in server.load("broken").error
    assert server.load("device").status == 200


def test_passive_instances_get_no_requests(start_server):
    groups = "instance_group [{ kind: KIND_CPU passive: true }, { kind: KIND_CPU }]"
    source = code("y = self.number", initialize="self.number = args['model_instance_name'][-3]")
    server = start_server({"m": model(source, config(groups))}).await_ready()

    titles = " ".join(server.worker_titles())
    assert "m_0_0" in titles
    assert [server.infer("m") for _ in range(6)] == [[1.0]] * 6


def test_call_that_waits_for_resources_of_its_caller_is_refused(start_server):
    models = {"caller": limited(shared(1), code(CALLER)), "leaf": limited(shared(1))}
    server = start_server(models, flags=LIMITED).await_ready()

    with pytest.raises(InferFailedError, match="the call would never be answered"):
        server.infer("caller")

    assert server.infer("leaf", 2.0) == [2.0]


def test_call_runs_if_resources_are_left_for_it(start_server):
    models = {"caller": limited(shared(1), code(CALLER)), "leaf": limited(shared(1))}
    flags = [*LIMITED, "--rate-limit-resource=R:2"]
    server = start_server(models, flags=flags).await_ready()

    assert infer_side_by_side(server, ["caller", "leaf"]) == [[float(n)] for n in range(60)]
