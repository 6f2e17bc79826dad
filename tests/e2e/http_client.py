# SPDX-License-Identifier: Apache-2.0
"""A client on the standard library: it shows what is on the wire, and may send what is wrong."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytriton.base import dtypes
from tests.e2e.waiting import DEADLINE_S

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict[str, str]  # by lower-case name
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error, which comes alone in its object."""
        document = self.json
        assert list(document) == ["error"], document
        return document["error"]


class InferFailedError(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {answer.body[:2000]!r}")
        self.status = answer.status
        self.text = answer.error


def call(
    port: int,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
    timeout_s: float = DEADLINE_S,
) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(
            method or ("GET" if body is None else "POST"), path, body, dict(headers or {})
        )
        response = connection.getresponse()
        answered = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, answered, response.read())
    finally:
        connection.close()


def json_tensor(name: str, array: np.ndarray, datatype: str | None = None) -> dict[str, Any]:
    """A tensor as a member of `inputs`, its data in JSON."""
    data = array.ravel().tolist()
    if array.dtype.kind == "O":
        data = [element.decode() for element in data]
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype or dtypes.from_numpy(array.dtype).name,
        "data": data,
    }


def json_body(inputs: Mapping[str, np.ndarray], **members: Any) -> bytes:
    """The body of an infer request with all data in JSON; `members` are added to it."""
    tensors = [json_tensor(name, array) for name, array in inputs.items()]
    return json.dumps({"inputs": tensors, **members}).encode()


def binary_body(inputs: Mapping[str, np.ndarray], **members: Any) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an infer request with all data in binary, both ways."""
    tensors = []
    blobs = []
    for name, array in inputs.items():
        dtype = dtypes.from_numpy(array.dtype)
        is_text = dtype is dtypes.BYTES
        blob = (
            dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
            if is_text
            else memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        )
        blobs.append(blob)
        tensors.append(
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": dtype.name,
                "parameters": {"binary_data_size": len(blob)},
            }
        )
    parameters = {"binary_data_output": True, **members.pop("parameters", {})}
    head = json.dumps({"inputs": tensors, "parameters": parameters, **members}).encode()
    return b"".join((head, *blobs)), {HEADER_LENGTH: str(len(head))}


def outputs_of(answer: Answer) -> dict[str, np.ndarray]:
    """The output tensors of an infer response, binary or JSON."""
    if answer.status != 200:
        raise InferFailedError(answer)
    length = answer.headers.get(HEADER_LENGTH.lower())
    at = len(answer.body) if length is None else int(length)
    outputs = {}
    for tensor in json.loads(answer.body[:at])["outputs"]:
        dtype, shape = dtypes.BY_NAME[tensor["datatype"]], tuple(tensor["shape"])
        if "data" in tensor:
            data = [e.encode() for e in tensor["data"]] if dtype is dtypes.BYTES else tensor["data"]
            array = np.array(data, dtype.numpy).reshape(shape)
        else:
            size = tensor["parameters"]["binary_data_size"]
            array = _array(dtype, shape, memoryview(answer.body)[at : at + size])
            at += size
        outputs[tensor["name"]] = array
    assert at == len(answer.body)
    return outputs


def _array(dtype: dtypes.DataType, shape: tuple[int, ...], data: memoryview) -> np.ndarray:
    if dtype is dtypes.BYTES:
        return dtypes.bytes_elements_to_array(dtypes.decode_bytes(data), shape)
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def infer(
    port: int,
    model: str,
    inputs: Mapping[str, np.ndarray],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = DEADLINE_S,
    **members: Any,
) -> dict[str, np.ndarray]:
    """Infer with binary tensors; `InferFailedError` where the answer is not 200."""
    body, added = binary_body(inputs, **members)
    path = f"/v2/models/{model}/infer"
    return outputs_of(call(port, path, body, {**added, **(headers or {})}, timeout_s=timeout_s))


def infer_json(port: int, model: str, inputs: Mapping[str, np.ndarray], **members: Any) -> Answer:
    """Infer with JSON tensors; the answer as it came."""
    return call(port, f"/v2/models/{model}/infer", json_body(inputs, **members))


def is_ready(port: int, model: str | None = None) -> bool:
    """Whether the server, or a model of it, says that it is ready; False where nothing listens."""
    path = "/v2/health/ready" if model is None else f"/v2/models/{model}/ready"
    try:
        return call(port, path).status == 200
    except (OSError, http.client.HTTPException):
        return False


def is_port_free(port: int) -> bool:
    """Whether a new server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen()
        except OSError:
            return False
        return True
