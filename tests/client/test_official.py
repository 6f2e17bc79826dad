# SPDX-License-Identifier: Apache-2.0
"""Clients of the package `tritonclient`, which may be missing, in the place of ours."""

from __future__ import annotations

import sys
from unittest import mock

import numpy as np
import pytest
import tritonclient.http

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    ModelClient,
    official,
    utils,
)
from tests.client.test_asyncio_client import in_a_loop

ONE = np.ones(1, np.float32)


class Missing:
    """Finds nothing of the package."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tritonclient":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def no_package(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tritonclient"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


@pytest.mark.usefixtures("no_package")
def test_missing_package_is_named_with_the_command_that_installs_it(scheme):
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pytriton\[tritonclient\]'"):
        utils.create_client_from_url(f"{scheme}://localhost")
    with (
        ModelClient(f"{scheme}://localhost", "M") as client,
        pytest.raises(ModuleNotFoundError, match=rf"tritonclient\.{scheme} needs the package"),
    ):
        client.get_lib()


@pytest.mark.usefixtures("no_package")
def test_clients_do_without_the_package(our_server, scheme):
    with ModelClient(our_server.urls[scheme], "AddSub") as client:
        assert client.infer_sample(ONE, ONE)["add"] == 2


def test_class_whose_method_is_replaced_is_noticed():
    before = official.has_fakes("http", is_asyncio=False)
    with mock.patch.object(tritonclient.http.InferenceServerClient, "infer", autospec=True):
        amid = official.has_fakes("http", is_asyncio=False)

    assert (before, amid) == (False, True)


@pytest.mark.usefixtures("no_package")
def test_package_that_nobody_has_imported_has_no_fakes():
    assert not official.has_fakes("grpc", is_asyncio=True)


class Official:
    """Has the clients of the package instead of ours."""

    def create_client_from_url(self, url, network_timeout_s=None):
        return self.get_lib().InferenceServerClient(url.partition("://")[2])


class OfficialStreams(Official, DecoupledModelClient):
    pass


class OfficialAsyncio(Official, AsyncioModelClient):
    pass


class OfficialAsyncioStreams(Official, AsyncioDecoupledModelClient):
    pass


def test_stream_goes_through_an_official_client(our_server):
    with OfficialStreams(our_server.urls["grpc"], "Counter") as client:
        values = [int(one["value"].item()) for one in client.infer_sample(np.array([3], np.int32))]

    assert values == [0, 1, 2]


@in_a_loop
async def test_asyncio_clients_ask_through_official_ones(our_server, scheme):
    async with OfficialAsyncio(our_server.urls[scheme], "AddSub") as client:
        assert (await client.infer_sample(ONE, ONE))["add"] == 2


@in_a_loop
async def test_asyncio_stream_goes_through_an_official_client(our_server):
    async with OfficialAsyncioStreams(our_server.urls["grpc"], "Counter") as client:
        responses = client.infer_sample(np.array([3], np.int32))
        values = [int(one["value"].item()) async for one in responses]

    assert values == [0, 1, 2]
