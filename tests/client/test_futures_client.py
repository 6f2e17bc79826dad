# SPDX-License-Identifier: Apache-2.0
"""`FuturesModelClient`: results and errors come through futures, and the queue has an end."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait

import numpy as np
import pytest

from pytriton.client import FuturesModelClient, ModelClient
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInvalidUrlError,
    PyTritonClientQueueFullError,
    PyTritonClientValueError,
)
from tests.client.operands import A, B
from tests.e2e.waiting import DEADLINE_S, eventually


class HeldModelClient(ModelClient):
    """Answers when it is let go, without a server."""

    started = threading.Semaphore(0)
    let_go = threading.Event()

    def infer_sample(self, *inputs, **_):
        self.started.release()
        assert self.let_go.wait(DEADLINE_S)
        return {"y": inputs[0]}


@pytest.fixture
def held(monkeypatch):
    monkeypatch.setattr(HeldModelClient, "started", threading.Semaphore(0))
    monkeypatch.setattr(HeldModelClient, "let_go", threading.Event())
    monkeypatch.setattr("pytriton.client.futures_client.ModelClient", HeldModelClient)
    yield HeldModelClient
    HeldModelClient.let_go.set()


def test_many_requests_at_a_time(url):
    values = [np.array([number, 1], np.float32) for number in range(200)]
    with FuturesModelClient(url, "AddSub", max_workers=16, max_queue_size=None) as client:
        futures = [client.infer_sample(value, B) for value in values]
        results = [future.result(DEADLINE_S) for future in futures]

    for value, result in zip(values, results, strict=True):
        np.testing.assert_array_equal(result["add"], value + B)


@pytest.mark.parametrize(
    "url,arguments,error",
    [
        (["localhost"], (A, B), PyTritonClientInvalidUrlError),
        ("ftp://localhost", (A, B), PyTritonClientInvalidUrlError),
        ("localhost:1", (), PyTritonClientValueError),
    ],
)
def test_errors_come_through_the_future(url, arguments, error):
    with FuturesModelClient(url, "Model") as client:
        future = client.infer_sample(*arguments)

        with pytest.raises(error):
            future.result(DEADLINE_S)


@pytest.mark.parametrize("name", ["max_workers", "max_queue_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_limits_have_to_be_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be greater than 0 or None, got {value}"):
        FuturesModelClient("localhost", "Model", **{name: value})


def test_full_queue_refuses_at_once_where_it_must_not_block(held):
    with FuturesModelClient(
        "localhost", "Model", max_workers=1, max_queue_size=2, non_blocking=True
    ) as client:
        futures = [client.infer_sample(A)]
        assert held.started.acquire(timeout=DEADLINE_S)  # this one does not wait any more
        futures += [client.infer_sample(A), client.infer_sample(A)]

        with pytest.raises(PyTritonClientQueueFullError, match="2 requests are already waiting"):
            client.infer_sample(A)
        held.let_go.set()

        assert all(future.result(DEADLINE_S) for future in futures)


def test_full_queue_is_waited_for_as_long_as_an_inference_may_take(held):
    with FuturesModelClient(
        "localhost", "Model", max_workers=1, max_queue_size=1, inference_timeout_s=0.1
    ) as client:
        client.infer_sample(A)
        assert held.started.acquire(timeout=DEADLINE_S)
        client.infer_sample(A)

        with pytest.raises(PyTritonClientQueueFullError):
            client.infer_sample(A)
        held.let_go.set()


def test_cancelled_request_makes_room(held):
    with FuturesModelClient(
        "localhost", "Model", max_workers=1, max_queue_size=1, non_blocking=True
    ) as client:
        client.infer_sample(A)
        assert held.started.acquire(timeout=DEADLINE_S)
        assert client.infer_sample(A).cancel()

        last = client.infer_sample(A)
        held.let_go.set()

        assert last.result(DEADLINE_S)["y"] is A


def test_closing_finishes_what_was_taken(held):
    client = FuturesModelClient("localhost", "Model", max_workers=1)
    futures = [client.infer_sample(A) for _ in range(3)]
    threading.Timer(0.05, held.let_go.set).start()

    client.close()

    assert all(future.done() for future in futures)


def test_closing_without_waiting_finishes_what_was_taken_later(held):
    client = FuturesModelClient("localhost", "Model", max_workers=1)
    futures = [client.infer_sample(A) for _ in range(3)]

    client.close(wait=False)
    assert not futures[-1].done()
    held.let_go.set()

    assert not wait(futures, DEADLINE_S).not_done
    assert eventually(lambda: client._client._closed)


def test_callback_of_a_future_may_close(our_server, scheme, caplog):
    client = FuturesModelClient(our_server.urls[scheme], "AddSub")
    client.infer_sample(A, B).add_done_callback(lambda _: client.close())

    assert eventually(lambda: client._client is not None and client._client._closed)
    assert caplog.records == []
    client.close()


def test_closed_client_is_refused_directly():
    client = FuturesModelClient("localhost", "Model")
    client.close()
    client.close()
    client.close(wait=False)

    for use in (client.model_config, lambda: client.infer_sample(A)):
        with pytest.raises(PyTritonClientClosedError, match="FuturesModelClient is closed"):
            use()


def test_client_is_made_after_another(url):
    with FuturesModelClient(url, "AddSub", max_workers=3, inference_timeout_s=33) as first:
        config = first.model_config().result(DEADLINE_S)
        with FuturesModelClient.from_existing_client(first) as twin:
            np.testing.assert_array_equal(twin.infer_sample(A, B).result(DEADLINE_S)["add"], A + B)
            assert twin.model_config().result(DEADLINE_S) is config
            assert twin._limits == first._limits


def test_subclass_may_split_batches(url):
    class ChunkingClient(FuturesModelClient):
        def infer_batch(self, *inputs, **named_inputs):
            size = self.model_config().result(DEADLINE_S).max_batch_size
            chunks = [
                super(ChunkingClient, self).infer_batch(
                    *(array[at : at + size] for array in inputs)
                )
                for at in range(0, len(inputs[0]), size)
            ]
            return np.concatenate([chunk.result(DEADLINE_S)["add"] for chunk in chunks])

    rows = np.arange(100, dtype=np.float32).reshape(50, 2)
    with ChunkingClient(url, "AddSub", max_workers=None) as client:
        np.testing.assert_array_equal(client.infer_batch(rows, rows), rows * 2)


def test_program_that_forgets_to_close_ends(our_server):
    source = f"""
import numpy as np
from pytriton.client import FuturesModelClient
client = FuturesModelClient({our_server.urls["http"]!r}, "AddSub")
print(client.infer_sample(np.ones(1, np.float32), np.ones(1, np.float32)).result()["add"])
"""
    process = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert (process.stdout.strip(), process.stderr) == ("[2.]", "")
