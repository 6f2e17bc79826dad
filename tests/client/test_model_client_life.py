# SPDX-License-Identifier: Apache-2.0
"""How a `ModelClient` is made, gets to know its model, waits for it, and is closed."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.client import AsyncioModelClient, ModelClient, asyncio_utils, utils
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from tests.client.operands import A, B
from tests.client.scripted_server import ScriptedServer
from tests.e2e.waiting import DEADLINE_S


def test_client_that_does_not_wait_for_its_first_use_knows_the_model(url):
    with ModelClient(url, "AddSub", lazy_init=False, init_timeout_s=DEADLINE_S) as client:
        assert client._model_config.model_name == "AddSub"


def test_version_that_is_no_text_is_refused_at_once(scheme):
    with pytest.raises(PyTritonClientValueError, match="version as text, such as '1', got 1"):
        ModelClient(f"{scheme}://localhost", "AddSub", 1)


class _AskedError(Exception):
    pass


async def _config_of(client):
    config = client.model_config
    return await config if inspect.isawaitable(config) else config


@pytest.mark.parametrize("timeout_s, gives_up", [(None, True), (300.0, False)])
@pytest.mark.parametrize("is_copy", [False, True])
def test_only_a_timeout_that_a_user_gives_is_waited_for_whatever_the_server_says(
    monkeypatch, timeout_s, gives_up, is_copy
):
    asked = []

    def wait_for_model_config(client, model, wait, headers):
        asked.append(wait._gives_up)
        raise _AskedError

    monkeypatch.setattr(utils, "wait_for_model_config", wait_for_model_config)
    monkeypatch.setattr(asyncio_utils, "asyncio_wait_for_model_config", wait_for_model_config)
    for kind in (ModelClient, AsyncioModelClient):
        client = kind("localhost", "M", init_timeout_s=timeout_s)
        if is_copy:
            client = kind.from_existing_client(client)
        with pytest.raises(_AskedError):
            asyncio.run(_config_of(client))

    assert asked == [gives_up] * 2


def test_known_config_saves_the_questions(url, client):
    config = client.model_config
    settings = {"model_config": config, "ensure_model_is_ready": False}
    with ModelClient(url, "AddSub", **settings) as knowing:
        np.testing.assert_array_equal(knowing.infer_sample(A, B)["add"], A + B)
        assert knowing.model_config is config


def test_known_config_is_fetched_again_where_readiness_is_to_be_ensured(url, client):
    config = client.model_config
    with ModelClient(url, "AddSub", model_config=config) as careful:
        careful.infer_sample(A, B)

        assert careful.model_config is not config
        assert careful.model_config == config


def test_client_made_after_another_speaks_its_protocol_and_knows_its_model(client, scheme):
    client.infer_sample(A, B)
    with ModelClient.from_existing_client(client) as twin:
        assert twin._url == client._url
        assert twin.model_config is client.model_config
        np.testing.assert_array_equal(twin.infer_sample(A, B)["add"], A + B)
    np.testing.assert_array_equal(client.infer_sample(A, B)["add"], A + B)


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.infer_sample(A, B),
        lambda client: client.infer_batch(A, B),
        lambda client: client.wait_for_model(1),
        lambda client: client.wait_for_server(1),
        lambda client: client.model_config,
        lambda client: client.load_model(),
    ],
)
def test_closed_client_is_refused(scheme, use):
    client = ModelClient(f"{scheme}://localhost:1", "Model")
    client.close()
    client.close()

    with pytest.raises(PyTritonClientClosedError, match="ModelClient is closed"):
        use(client)


def test_closed_client_is_refused_before_its_inputs_are_looked_at_but_not_before_they_are_there():
    client = ModelClient("localhost:1", "Model")
    client.close()

    with pytest.raises(PyTritonClientClosedError):
        client.infer_batch(a=[A])
    with pytest.raises(PyTritonClientValueError, match="Provide input data"):
        client.infer_batch()


def test_client_dropped_in_another_thread_says_nothing(url):
    clients = [ModelClient(url, "AddSub")]
    clients[0].infer_sample(A, B)

    def drop():
        clients.clear()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()  # what a destructor raises becomes an error by the settings of these tests

    assert clients == []


def test_client_shows_what_it_is(scheme):
    with ModelClient(f"{scheme}://localhost", "AddSub", access_token="secret") as client:
        assert "AddSub" in repr(client)
        assert scheme in repr(client)
        assert "secret" not in repr(client)
    assert "closed" in repr(client)


ACCEPTED = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REFUSED = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 23\r\n\r\n{"error":"not allowed"}'


def test_loading_and_unloading_ask_the_repository():
    with ScriptedServer([ACCEPTED, ACCEPTED]) as server, ModelClient(server.url, "M") as client:
        client.load_model(config="{}", files={"file:1/model.bin": b"\x01"})
        client.unload_model()

    (load, unload), *_ = server.requests
    assert load.startswith(b"POST /v2/repository/models/M/load HTTP/1.1\r\n")
    assert b'"config":"{}"' in load
    assert b'"file:1/model.bin":"AQ=="' in load
    assert unload.startswith(b"POST /v2/repository/models/M/unload HTTP/1.1\r\n")


def test_model_that_was_loaded_anew_is_asked_for_its_config_again(our_server):
    with ModelClient(our_server.urls["http"], "AddSub") as client:
        client.infer_sample(A, B)
        config = client.model_config
        client._general_client.load_model = lambda *_, **__: None
        client.load_model()

        assert client.model_config is not config
        assert client.infer_sample(A, B)["add"].tolist() == (A + B).tolist()


def test_refused_config_is_the_server_s_error():
    ready = ACCEPTED
    with (
        ScriptedServer([ready, ready, ready, REFUSED]) as server,
        ModelClient(server.url, "M") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="not allowed"),
    ):
        client.infer_sample(A)


class ClientOfOwnMaking(ModelClient):
    """Makes the official clients as it likes."""

    def create_client_from_url(self, url, network_timeout_s=None):
        address = url.removeprefix("http://")
        return self.get_lib().InferenceServerClient(address, network_timeout=DEADLINE_S)


def test_subclass_may_make_the_official_clients(our_server):
    with ClientOfOwnMaking(our_server.urls["http"], "AddSub") as client:
        np.testing.assert_array_equal(client.infer_sample(A, B)["add"], A + B)


def test_official_clients_have_the_limits_that_were_asked_for():
    with (
        ModelClient("http://localhost", "M", inference_timeout_s=7.0) as client,
        client.create_client_from_url("http://localhost", network_timeout_s=3.0) as other,
    ):
        pools = [one._client_stub._connection_pool for one in (client._infer_client, other)]

    assert [(pool.network_timeout, pool.connection_timeout) for pool in pools] == [
        (7.0, 7.0),
        (3.0, 3.0),
    ]


def test_wait_for_a_thread_that_initialises_ends_in_time(our_server):
    with (
        ModelClient(our_server.urls["http"], "AddSub", init_timeout_s=0.1) as client,
        client._init_lock,
        pytest.raises(PyTritonClientTimeoutError, match="Another thread"),
    ):
        client.infer_sample(A, B)


def test_inference_during_which_another_thread_closes_is_refused(our_server, scheme):
    client = ModelClient(our_server.urls[scheme], "AddSub", lazy_init=False)

    def close_first(config):
        client.close()
        return []

    client._outputs_of = close_first
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample(A, B)


def test_wait_during_which_another_thread_closes_is_refused(our_server, scheme):
    client = ModelClient(our_server.urls[scheme], "Nobody")
    ask = client._general_client.is_model_ready

    def is_model_ready(*model, **headers):
        asked.set()
        return ask(*model, **headers)

    asked = threading.Event()
    client._general_client.is_model_ready = is_model_ready
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.wait_for_model, DEADLINE_S)
        assert asked.wait(DEADLINE_S)
        client.close()

        with pytest.raises(PyTritonClientClosedError):
            waiting.result()


@pytest.mark.parametrize("limit_s", [1e7, 1e10, math.inf, 2**63])
def test_limit_may_be_as_long_as_one_likes(our_server, scheme, limit_s):
    limits = {"init_timeout_s": limit_s, "inference_timeout_s": limit_s}
    with ModelClient(our_server.urls[scheme], "AddSub", **limits) as client:
        client.wait_for_model(limit_s)
        assert client.infer_sample(A, B)["add"].tolist() == (A + B).tolist()


@pytest.mark.parametrize("limit_s", [0, -1, -2.5])
def test_limit_of_no_time_is_a_timeout(stalled, scheme, limit_s):
    with (
        ModelClient(stalled.url(scheme), "Model", init_timeout_s=limit_s) as client,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample(A, B)


@pytest.mark.parametrize("name", ["init_timeout_s", "inference_timeout_s"])
def test_limit_that_is_no_number_is_refused(scheme, name):
    with pytest.raises(PyTritonClientValueError, match=f"{name}: expected a number .* got nan"):
        ModelClient(f"{scheme}://localhost", "AddSub", **{name: math.nan})
