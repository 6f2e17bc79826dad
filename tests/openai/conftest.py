# SPDX-License-Identifier: Apache-2.0
"""A server with models that have opted in to OpenAI's routes; its inferences need a token."""

from __future__ import annotations

import pathlib

import pytest

from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.collected import items_in
from tests.free_ports import free_ports
from tests.openai.talking_models import Models

TOKEN = "sesame"


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="package")
def models():
    """What the models note, and the address of their server."""
    http, grpc, metrics = free_ports(3)
    config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics)
    security = TritonSecurityConfig(access_token=TOKEN, restricted_endpoints=["inference"])
    with Triton(config=config, security_config=security) as triton:
        served = Models(f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}")
        served.bind(triton)
        triton.run()
        yield served
        served.release.set()
