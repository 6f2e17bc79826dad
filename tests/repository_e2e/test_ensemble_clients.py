# SPDX-License-Identifier: Apache-2.0
"""Ensembles as clients see them: Triton's own, sync and async, over HTTP, gRPC and streams."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

from pytriton.client import DecoupledModelClient, ModelClient
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HELD,
    HOLD,
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
CACHED = "response_cache { enable: true }"
MODELS = {
    "plus": model(code("y = x + 1")),
    "twice": model(code("y = x * 2")),
    "identity": model(),
    "failing": model(code("raise ValueError('cannot')")),
    "patient": model(code(UNTIL_CANCELLED), **HELD),
    "repeat": model(decoupled_code(REPEAT), config(DECOUPLED)),
    "endless": model(
        decoupled_code("while not sender.is_cancelled(): send(x); time.sleep(0.001)"),
        config(DECOUPLED),
    ),
    "counting": model(code(COUNTING), config(CACHED)),
    "uncached": model(code(COUNTING)),
    "pipe": ensemble("plus", "twice", "identity"),
    "identities": ensemble("identity", "identity", "identity"),
    "fails": ensemble("plus", "failing", "twice"),
    "waits": ensemble("plus", "patient", "uncached"),
    "repeats": ensemble("repeat", "plus"),
    "endlessly": ensemble("endless", "plus"),
    "cached_step": ensemble("plus", "counting"),
    "cached_whole": ensemble("plus", "uncached", extra=CACHED),
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


def test_error_of_a_step_names_the_ensemble(infer):
    with pytest.raises(InferenceServerException) as failed:
        infer("fails")

    assert failed.value.message().startswith("in ensemble 'fails', ")
    assert "ValueError: cannot" in failed.value.message()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_many_clients_at_once_get_their_own_answers(server, protocol):
    def ask(client_number):
        opened = server.http_client() if protocol == "http" else server.grpc_client()
        arrays = [np.full((1, 3), client_number * 100 + n, np.float32) for n in range(25)]
        with opened as client:
            results = [client.infer("pipe", inputs(CLIENTS[protocol], array)) for array in arrays]
        return [
            np.array_equal(result.as_numpy("Y"), array * 2 + 2)
            for result, array in zip(results, arrays, strict=True)
        ]

    with ThreadPoolExecutor(8) as threads:
        answers = [answer for found in threads.map(ask, range(8)) for answer in found]

    assert answers == [True] * 200


def test_async_requests_of_sync_clients_are_all_answered(server):
    count = 100
    with server.http_client(concurrency=8) as client:
        waiting = [
            client.async_infer("pipe", inputs(triton_http, ROWS + number))
            for number in range(count)
        ]
        answers = [one.get_result().as_numpy("Y") for one in waiting]
    assert all(np.array_equal(answer, (ROWS + n) * 2 + 2) for n, answer in enumerate(answers))

    results = queue.Queue()
    with server.grpc_client() as client:
        for number in range(count):
            client.async_infer(
                "pipe",
                inputs(triton_grpc, ROWS + number),
                lambda result, error: results.put((result, error)),
                request_id=str(number),
            )
        found = [results.get(timeout=DEADLINE_S) for _ in range(count)]
    assert {error for _, error in found} == {None}
    for result, _ in found:
        number = int(result.get_response().id)
        assert np.array_equal(result.as_numpy("Y"), (ROWS + number) * 2 + 2)


@pytest.mark.parametrize(
    "library, port",
    [(triton_http_aio, "http_port"), (triton_grpc_aio, "grpc_port")],
    ids=["http", "grpc"],
)
def test_asyncio_clients_ask_ensembles(server, library, port):
    async def ask_many():
        async with library.InferenceServerClient(f"127.0.0.1:{getattr(server, port)}") as client:
            results = await asyncio.gather(
                *(client.infer("pipe", inputs(library, ROWS + number)) for number in range(50))
            )
            with pytest.raises(InferenceServerException, match="in ensemble 'fails', "):
                await client.infer("fails", inputs(library))
            return [result.as_numpy("Y") for result in results]

    answers = asyncio.run(ask_many())

    assert all(np.array_equal(answer, (ROWS + n) * 2 + 2) for n, answer in enumerate(answers))


def requests_of_a_stream(count):
    for number in range(count):
        yield {
            "model_name": "repeats",
            "inputs": inputs(triton_grpc_aio, np.arange(number, dtype=np.float32).reshape(1, -1)),
            "request_id": str(number),
            "enable_empty_final_response": True,
        }


def test_stream_of_an_asyncio_client_gives_each_request_its_responses_in_order(server):
    count = 8

    async def send_all():
        for request in requests_of_a_stream(count):
            yield request

    async def collect():
        address = f"127.0.0.1:{server.grpc_port}"
        seen, ended = {str(number): [] for number in range(count)}, set()
        async with triton_grpc_aio.InferenceServerClient(address) as client:
            async for result, error in client.stream_infer(send_all()):
                assert error is None
                response = result.get_response()
                assert response.id not in ended
                if response.outputs:
                    seen[response.id].append(result.as_numpy("Y").item())
                if response.parameters["triton_final_response"].bool_param:
                    ended.add(response.id)
                if len(ended) == count:
                    return seen
        return seen

    seen = asyncio.run(collect())

    assert seen == {str(n): [float(value + 1) for value in range(n)] for n in range(count)}


def test_one_stream_carries_ensembles_with_one_and_with_many_responses(server):
    answers = queue.Queue()
    with server.grpc_client() as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("repeats", inputs(triton_grpc), request_id="many")
        client.async_stream_infer("pipe", inputs(triton_grpc), request_id="one")
        client.async_stream_infer("fails", inputs(triton_grpc), request_id="none")
        found = [answers.get(timeout=DEADLINE_S) for _ in range(6)]
        client.stop_stream()

    values = {"many": [], "one": []}
    for result, error in found:
        if error is None:
            values[result.get_response().id].append(result.as_numpy("Y").ravel().tolist())
    assert values == {"many": [[2.0], [3.0], [4.0], [5.0]], "one": [[4.0, 6.0, 8.0, 10.0]]}
    (error,) = [error for _, error in found if error is not None]
    assert "in ensemble 'fails', " in error.message()


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


def test_closing_a_stream_ends_endless_steps(server):
    answers = queue.Queue()
    with server.grpc_client() as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("endlessly", inputs(triton_grpc, ROWS[:1]))
        for _ in range(3):
            result, error = answers.get(timeout=DEADLINE_S)
            assert error is None
            assert result.as_numpy("Y").tolist() == (ROWS[:1] + 1).tolist()
        client.stop_stream(cancel_requests=True)

    assert eventually(lambda: has_ended_one(server, "endlessly"))
    assert eventually(lambda: has_ended_one(server, "endless"))


def statistics(server, name):
    return server.get(f"/v2/models/{name}/stats").json["model_stats"][0]


def executions(server, name):
    return statistics(server, name)["execution_count"]


def failures(server, name):
    return statistics(server, name)["inference_stats"]["fail"]["count"]


def has_ended_one(server, name):
    stats = statistics(server, name)["inference_stats"]
    return stats["success"]["count"] + stats["fail"]["count"] > 0


def test_answers_of_a_step_come_from_the_cache(server, infer):
    first, again = infer("cached_step"), infer("cached_step")

    assert np.array_equal(first, again)
    stats = statistics(server, "counting")["inference_stats"]
    assert stats["cache_miss"]["count"] == 1
    assert executions(server, "counting") == 1


def test_answers_of_a_whole_ensemble_come_from_the_cache(server, infer):
    first = infer("cached_whole", ROWS + 100)
    before = executions(server, "plus"), executions(server, "uncached")
    again = infer("cached_whole", ROWS + 100)

    assert np.array_equal(first, again)
    assert (executions(server, "plus"), executions(server, "uncached")) == before
    assert statistics(server, "cached_whole")["inference_stats"]["cache_hit"]["count"] >= 1


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


def test_clients_read_what_an_ensemble_is(server):
    with server.http_client() as http, server.grpc_client() as grpc:
        assert http.is_model_ready("pipe")
        assert grpc.is_model_ready("pipe")
        assert http.get_model_metadata("pipe")["platform"] == "ensemble"
        assert grpc.get_model_metadata("pipe").platform == "ensemble"
        steps = grpc.get_model_config("pipe").config.ensemble_scheduling.step
        assert [step.model_name for step in steps] == ["plus", "twice", "identity"]
        found = grpc.get_inference_statistics("pipe").model_stats[0]
        assert found.name == "pipe"


HELD_STEP = functools.partial(model, code(HOLD + "\ny = x"), **HELD)


def test_client_that_gives_up_waiting_ends_the_request(start_server):
    models = {"held": HELD_STEP(), "pipe": ensemble("held")}
    server = start_server(models).await_ready()

    with server.grpc_client() as client, pytest.raises(InferenceServerException) as gave_up:
        client.infer("pipe", inputs(triton_grpc), client_timeout=0.2)
    server.let_go("held")

    assert gave_up.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert eventually(lambda: server.infer("pipe", 1.0) == [1.0])


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
