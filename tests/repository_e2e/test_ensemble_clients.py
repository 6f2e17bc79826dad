# SPDX-License-Identifier: Apache-2.0
"""Ensembles as clients see them: Triton's own, sync and async, over HTTP, gRPC and streams."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from pytriton.client import DecoupledModelClient, ModelClient
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HELD,
    code,
    config,
    decoupled_code,
    ensemble,
    model,
)

pytestmark = pytest.mark.both_front_end_modes

# Waits until the request is cancelled, or the file `hold` is gone; then tells which it was.
UNTIL_CANCELLED = """
folder = os.path.dirname(__file__)
open(os.path.join(folder, "started"), "w").close()
while os.path.exists(os.path.join(folder, "hold")):
    if request.is_cancelled():
        open(os.path.join(folder, "cancelled"), "w").close()
        break
    time.sleep(0.01)
y = x
"""
REPEAT = "for number in x.ravel(): send([[number]])"
COUNTING = "self.calls = getattr(self, 'calls', 0) + 1\ny = x + self.calls"


MODELS = {
    "plus": model(code("y = x + 1")),
    "twice": model(code("y = x * 2")),
    "identity": model(),
    "patient": model(code(UNTIL_CANCELLED), **HELD),
    "repeat": model(decoupled_code(REPEAT), config(DECOUPLED)),
    "uncached": model(code(COUNTING)),
    "pipe": ensemble("plus", "twice", "identity"),
    "identities": ensemble("identity", "identity", "identity"),
    "waits": ensemble("plus", "patient", "uncached"),
    "repeats": ensemble("repeat", "plus"),
}
ROWS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
CLIENTS = {"http": triton_http, "grpc": triton_grpc}


@pytest.fixture(scope="module")
def server(start_module_server):
    return start_module_server(MODELS, flags=["--cache-config=local,size=1048576"]).await_ready()


def inputs(client, array=ROWS):
    tensor = client.InferInput("X", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


@pytest.fixture(params=["http", "grpc"])
def infer(request, server):
    """Asks a model over one of the protocols, with Triton's client."""
    opened = server.http_client() if request.param == "http" else server.grpc_client()
    with opened as client:

        def infer(name, array=ROWS, **options):
            result = client.infer(name, inputs(CLIENTS[request.param], array), **options)
            return result.as_numpy("Y")

        yield infer


def test_clients_get_what_the_last_step_gives(infer):
    assert infer("pipe").tolist() == [[4.0, 6.0], [8.0, 10.0]]


def test_large_tensors_pass_through_all_steps(infer):
    large = np.random.default_rng(0).random((1, 1 << 18), np.float32)

    assert np.array_equal(infer("identities", large), large)


def test_cancelling_a_request_cancels_the_running_step_and_no_other_step_runs(server):
    folder = server.repository / "patient" / "1"
    before = executions(server, "uncached")
    cancelled = threading.Event()
    with server.grpc_client() as client:
        call = client.async_infer(
            "waits", inputs(triton_grpc), lambda result, error: cancelled.set()
        )
        assert eventually((folder / "started").exists)
        call.cancel()
        assert cancelled.wait(DEADLINE_S)
        assert eventually((folder / "cancelled").exists)
    server.let_go("patient")

    assert eventually(lambda: failures(server, "waits") == 1)
    assert executions(server, "uncached") == before


def statistics(server, name):
    return server.get(f"/v2/models/{name}/stats").json["model_stats"][0]


def executions(server, name):
    return statistics(server, name)["execution_count"]


def failures(server, name):
    return statistics(server, name)["inference_stats"]["fail"]["count"]


def test_our_clients_ask_ensembles(server):
    for address in (f"http://127.0.0.1:{server.http_port}", f"grpc://127.0.0.1:{server.grpc_port}"):
        with ModelClient(address, "pipe") as client:
            assert client.model_config.max_batch_size == 8
            assert client.infer_batch(ROWS)["Y"].tolist() == [[4.0, 6.0], [8.0, 10.0]]
            assert client.infer_sample(X=ROWS[0])["Y"].tolist() == [4.0, 6.0]


def test_our_decoupled_client_asks_ensembles(server):
    with DecoupledModelClient(f"grpc://127.0.0.1:{server.grpc_port}", "repeats") as client:
        answers = [answer["Y"].tolist() for answer in client.infer_sample(ROWS[0])]

    assert answers == [[2.0], [3.0]]


def test_step_that_dies_fails_its_requests_once_and_comes_back(start_server):
    patient = model(code(UNTIL_CANCELLED), **HELD)
    models = {
        "plus": model(code("y = x + 1")),
        "patient": patient,
        "pipe": ensemble("plus", "patient"),
    }
    server = start_server(models).await_ready()

    def ask():
        with server.grpc_client() as client:
            client.infer("pipe", inputs(triton_grpc))

    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask)
        assert eventually((server.repository / "patient" / "1" / "started").exists)
        (worker,) = [each for each in server.workers() if "patient" in " ".join(each.cmdline())]
        worker.kill()
        with pytest.raises(InferenceServerException) as failed:
            answer.result(DEADLINE_S)
    server.let_go("patient")

    assert failed.value.message().startswith("in ensemble 'pipe', ")
    assert eventually(lambda: server.serves("pipe") and server.infer("pipe", 1.0) == [2.0])
    assert failures(server, "pipe") == 1
