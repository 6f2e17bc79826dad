# SPDX-License-Identifier: Apache-2.0
"""What holds of every instance, however batches reach it: one suite for each kind of channel."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.transport.memory import PORTABLE_SETTING
from pytriton.triton import Triton, TritonConfig
from tests.e2e import http_client
from tests.e2e.conftest import new_ports

CHANNELS = {"memfd": "0", "portable": "1"}


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


class Host:
    """A running server that models are bound to one after the other, each under a new name."""

    def __init__(self, triton: Triton, ports: dict[str, int]) -> None:
        self.triton = triton
        self.port = ports["http_port"]
        self.metrics_port = ports["metrics_port"]
        self._numbers = itertools.count()
        self._names: list[str] = []

    def bind(self, infer_func, inputs=None, outputs=None, *, strict=False, **config) -> str:
        """Serve a callable; the name of its model. Rows of floats unless told otherwise."""
        name = f"Model{next(self._numbers)}"
        self._names.append(name)
        row = {"dtype": np.float32, "shape": (-1,)}
        self.triton.bind(
            name,
            infer_func,
            inputs if inputs is not None else [Tensor(name="x", **row)],
            outputs if outputs is not None else [Tensor(name="y", **row)],
            config=ModelConfig(**config),
            strict=strict,
        )
        return name

    def infer(self, name: str, /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        return http_client.infer(self.port, name, inputs)

    def unbind_all(self) -> None:
        while self._names:
            self.triton.unbind(self._names.pop())


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
