# SPDX-License-Identifier: Apache-2.0
"""The rate limiter of a real server: models that share resources, and those that cannot load."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.http_client import InferFailedError
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


def test_call_that_waits_for_resources_of_its_caller_is_refused(start_server):
    models = {"caller": limited(shared(1), code(CALLER)), "leaf": limited(shared(1))}
    server = start_server(models, flags=LIMITED).await_ready()

    with pytest.raises(InferFailedError, match="the call would never be answered"):
        server.infer("caller")

    assert server.infer("leaf", 2.0) == [2.0]
