# SPDX-License-Identifier: Apache-2.0
"""A server that many tests share: each binds the models that it needs, and they go with it."""

from __future__ import annotations

import http.client
import itertools
from typing import Any

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import TRITON_ACCESS_HEADER, Triton
from tests.e2e import http_client
from tests.e2e.waiting import DEADLINE_S


class Host:
    """A running server that models are bound to one after the other, each under a new name."""

    def __init__(self, triton: Triton, ports: dict[str, int]) -> None:
        self.triton = triton
        self.port = ports["http_port"]
        self.grpc_port = ports["grpc_port"]
        self.metrics_port = ports["metrics_port"]
        self.token = {TRITON_ACCESS_HEADER: triton.get_access_token() or ""}
        self._numbers = itertools.count()
        self._names: list[str] = []

    def bind(
        self, infer_func, inputs=None, outputs=None, *, name=None, strict=False, **config
    ) -> str:
        """Serve a callable; the name of its model. Rows of floats unless told otherwise."""
        name = name or f"Model{next(self._numbers)}"
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

    def error(self, name: str, /, **inputs: np.ndarray) -> tuple[int, str]:
        """Status and text of an inference that has to fail."""
        with pytest.raises(http_client.InferFailedError) as failure:
            http_client.infer(self.port, name, inputs)
        return failure.value.status, failure.value.text

    def get(self, path: str) -> http_client.Answer:
        return http_client.call(self.port, path, headers=self.token)

    def settle(self) -> None:
        """Wait until every front end, and after it the core, has handled what came before."""
        connections = [
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
            for _ in range(8)  # open at the same time, so that each front end gets some
        ]
        for connection in connections:
            connection.connect()
        for connection in connections:
            connection.request("GET", "/v2/models/stats", headers=self.token)
        for connection in connections:
            with connection.getresponse() as answer:
                assert answer.status == 200
            connection.close()

    def statistics(self, name: str) -> dict[str, Any]:
        """The account of a model."""
        (account,) = self.get(f"/v2/models/{name}/stats").json["model_stats"]
        return account

    def metric(self, family: str, name: str, **labels: str) -> float:
        """A value of a model from the metrics page."""
        page = http_client.call(self.metrics_port, "/metrics").body.decode()
        wanted = {f'model="{name}"', *(f'{label}="{value}"' for label, value in labels.items())}
        (value,) = [
            float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.startswith(family + "{") and all(label in line for label in wanted)
        ]
        return value

    def forget(self, name: str) -> None:
        """Leave the end of a model to the test."""
        self._names.remove(name)

    def unbind_all(self) -> None:
        while self._names:
            self.triton.unbind(self._names.pop())
