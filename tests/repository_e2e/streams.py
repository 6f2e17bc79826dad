# SPDX-License-Identifier: Apache-2.0
"""A gRPC stream to a decoupled model, with all that came back."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import tritonclient.grpc as triton_grpc

from tests.e2e.waiting import eventually


class Stream:
    """Sends rows to a decoupled model; keeps answers, errors and final flags."""

    def __init__(self, client: triton_grpc.InferenceServerClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.values: list[float] = []
        self.errors: list[str] = []
        self.final_count = 0

    def send(self, name: str, value: float, request_id: str = "") -> None:
        tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], np.float32))
        self._client.async_stream_infer(
            name, [tensor], request_id=request_id, enable_empty_final_response=True
        )

    def on_answer(self, result, error) -> None:
        with self._lock:
            if error is not None:
                self.errors.append(error.message())
                return
            response = result.get_response()
            if response.outputs:
                self.values.append(result.as_numpy("Y").item())
            self.final_count += response.parameters["triton_final_response"].bool_param

    def await_end(self) -> None:
        """Wait for the answer that says that there are no more, or for an error."""
        assert eventually(lambda: self.final_count or self.errors)


@contextlib.contextmanager
def open_stream(server):
    with server.grpc_client() as client:
        stream = Stream(client)
        client.start_stream(stream.on_answer)
        yield stream
        client.stop_stream()
