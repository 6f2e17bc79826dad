# SPDX-License-Identifier: Apache-2.0
"""What holds of every instance, however batches reach it: one suite for each kind of channel."""

from __future__ import annotations

import pathlib

import pytest

from pytriton.transport.memory import PORTABLE_SETTING
from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host

CHANNELS = {"memfd": "0", "portable": "1"}


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module", params=CHANNELS)
def running_host(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PORTABLE_SETTING, CHANNELS[request.param])
        ports = new_ports()
        with Triton(config=TritonConfig(**ports)) as triton:
            yield Host(triton, ports)


@pytest.fixture
def host(running_host):
    yield running_host
    running_host.unbind_all()
