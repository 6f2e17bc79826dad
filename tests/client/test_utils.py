# SPDX-License-Identifier: Apache-2.0
"""The functions on official clients, synchronous and asyncio."""

from __future__ import annotations

import types

import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from pytriton.client import asyncio_utils, utils
from pytriton.client.exceptions import (
    PyTritonClientInvalidUrlError,
)
from pytriton.client.utils import ModelState
from pytriton.client.warnings import NotSupportedTimeoutWarning
from tests.client.test_asyncio_client import in_a_loop
from tests.e2e.waiting import DEADLINE_S

INDEX = [("Model", "2", "READY"), ("Model", "10", "LOADING"), ("New", "", ""), ("Odd", "1", "")]
AS_DICTS = [dict(zip(("name", "version", "state"), row, strict=True)) for row in INDEX]
AS_MESSAGES = [types.SimpleNamespace(**row) for row in AS_DICTS]


@pytest.fixture
def official(url):
    with utils.create_client_from_url(url, network_timeout_s=DEADLINE_S) as client:
        yield client


def test_client_is_the_official_one(official, scheme):
    library = {"http": tritonclient.http, "grpc": tritonclient.grpc}[scheme]

    assert isinstance(official, library.InferenceServerClient)
    assert official.is_server_live()
    assert official.get_server_metadata() is not None


def test_client_of_a_bad_url_is_refused():
    with pytest.raises(PyTritonClientInvalidUrlError):
        utils.create_client_from_url("ftp://localhost")


def test_state_comes_from_the_index(our_server, scheme):
    headers = {}
    with utils.create_client_from_url(our_server.urls[scheme]) as client:
        client.get_model_repository_index = lambda headers: (
            AS_DICTS if scheme == "http" else types.SimpleNamespace(models=AS_MESSAGES)
        )
        states = {
            key: utils.get_model_state(client, *key, headers=headers)
            for key in (("Model", None), ("Model", "2"), ("Model", "3"), ("Nobody", None))
        }

    assert list(states.values()) == [
        ModelState.LOADING, ModelState.READY, ModelState.UNAVAILABLE, ModelState.UNAVAILABLE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "parse,index",
    [(utils.parse_http_response, AS_DICTS), (utils.parse_grpc_response, AS_MESSAGES)],
)
def test_index_is_read(parse, index):
    assert parse(index) == {
        ("Model", "2"): ModelState.READY,
        ("Model", "10"): ModelState.LOADING,
        ("Odd", "1"): ModelState.LOADING,
    }


def test_official_client_whose_limit_is_longer_is_warned_of(our_server):
    address = our_server.urls["http"].removeprefix("http://")
    with (
        tritonclient.http.InferenceServerClient(address, network_timeout=90.0) as client,
        pytest.warns(NotSupportedTimeoutWarning, match=r"90.0 s is longer than .* 60 s"),
    ):
        utils.wait_for_server_ready(client, 60)


def test_official_client_whose_limit_is_shorter_is_not_warned_of(our_server):
    address = our_server.urls["http"].removeprefix("http://")
    with tritonclient.http.InferenceServerClient(address, network_timeout=59.0) as client:
        assert utils.wait_for_server_ready(client, 60) is None


class ReadyClient:
    """The least that a wait needs."""

    def is_server_ready(self, headers=None):
        return True

    is_server_live = is_server_ready


def test_wait_takes_what_stands_in_for_an_official_client():
    assert utils.wait_for_server_ready(ReadyClient(), 5) is None


class ScriptedClient:
    """Answers the same to every question of a round; the next round has the next answer."""

    def __init__(self, *answers):
        self._answers = iter(answers)

    async def is_server_ready(self, headers=None):
        self._answer = next(self._answers)
        if isinstance(self._answer, Exception):
            raise self._answer
        return True

    async def is_server_live(self, headers=None):
        return True

    async def is_model_ready(self, model_name, model_version, headers=None):
        if (model_name, model_version) != ("Model", ""):
            raise AssertionError(f"expected the latest Model, got {model_name} {model_version}")
        return next(self._answers)

    async def get_model_config(self, model_name, model_version, headers=None):
        raise OSError("not yet")

    async def get_model_repository_index(self, headers=None):
        return AS_DICTS


@in_a_loop
async def test_asyncio_wait_without_end_looks_until_the_model_is_there():
    client = ScriptedClient(OSError("not yet"), True, False, False, True)

    await asyncio_utils.asyncio_wait_for_model_status_loaded(client, "Model", sleep_time_s=0)

    assert list(client._answers) == []


@in_a_loop
async def test_asyncio_state_comes_from_the_index():
    state = await asyncio_utils.asyncio_get_model_state(ScriptedClient(), "Model")

    assert state is ModelState.LOADING
