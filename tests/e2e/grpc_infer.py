# SPDX-License-Identifier: Apache-2.0
"""An inference over gRPC with the official messages: raw tensors both ways."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pytriton.base import dtypes
from tests.e2e.waiting import DEADLINE_S

_NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class GrpcCaller:
    """A channel that is kept open."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", _NO_LIMIT)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def infer(self, model: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, array in inputs.items():
            dtype = dtypes.from_numpy(array.dtype)
            request.inputs.add(name=name, datatype=dtype.name, shape=array.shape)
            request.raw_input_contents.append(_encoded(dtype, array))
        response = self._stub.ModelInfer(request, timeout=DEADLINE_S)
        return {
            output.name: _decoded(dtypes.BY_NAME[output.datatype], tuple(output.shape), raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }


def _encoded(dtype: dtypes.DataType, array: np.ndarray) -> bytes:
    if dtype is dtypes.BYTES:
        return dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
    return array.tobytes()


def _decoded(dtype: dtypes.DataType, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    if dtype is dtypes.BYTES:
        return dtypes.bytes_elements_to_array(dtypes.decode_bytes(raw), shape)
    return np.frombuffer(raw, dtype.numpy).reshape(shape)
