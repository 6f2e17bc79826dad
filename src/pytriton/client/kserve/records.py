# SPDX-License-Identifier: Apache-2.0
"""What KServe clients ask and what servers answer: records, tensors, JSON and paths; no I/O."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes

Document = Mapping[str, Any]  # as the server's JSON
Parameter = str | bool | int | float

_VIEW_BYTES = 65536  # smaller tensors are copied in less time than a view takes
LOAD_TIMEOUT_S = 600.0  # a model may take minutes to load
HEADER_LENGTH = "Inference-Header-Content-Length"  # bytes of JSON before binary tensors


@dataclasses.dataclass(frozen=True, slots=True)
class NamedArray:
    """A tensor; elements of BYTES are bytes objects."""

    name: str
    datatype: str
    array: NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelQuery:
    """A request for inference."""

    model: str
    version: str  # empty: the server decides
    inputs: tuple[NamedArray, ...]
    outputs: tuple[str, ...] = ()  # empty: all
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    request_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A response to a request for inference."""

    model: str
    version: str
    request_id: str
    parameters: Mapping[str, Parameter]
    outputs: tuple[NamedArray, ...]


class PlainTensor(msgspec.Struct, frozen=True):
    """A tensor whose data is laid out as in the protocol's binary form."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes  # or a view that can be read as such, which stays in this process

    @classmethod
    def of(cls, tensor: NamedArray, *, may_view: bool = False) -> PlainTensor:
        """Returns the tensor of an array; with `may_view`, the data of a large one is a view."""
        array = tensor.array
        if tensor.datatype == dtypes.BYTES.name:
            data = dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
        elif may_view and array.nbytes >= _VIEW_BYTES:
            data = cast("bytes", np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        else:
            data = array.tobytes()
        return cls(tensor.name, tensor.datatype, array.shape, data)

    def array(self) -> NDArray[Any]:
        """Returns the array of the tensor; elements of BYTES are bytes objects."""
        if self.datatype == dtypes.BYTES.name:
            return dtypes.bytes_elements_to_array(dtypes.decode_bytes(self.data), self.shape)
        return np.frombuffer(self.data, dtypes.BY_NAME[self.datatype].numpy).reshape(self.shape)

    def named(self) -> NamedArray:
        return NamedArray(self.name, self.datatype, self.array())

    def json_elements(self) -> list[Any]:
        """Returns the elements for JSON, in one list.

        Raises:
            UnicodeDecodeError: There are bytes that are no text, which JSON cannot carry.
        """
        if self.datatype != dtypes.BYTES.name:
            elements: list[Any] = self.array().ravel().tolist()
            return elements
        return [element.decode() for element in dtypes.decode_bytes(self.data)]


def tensor_of_elements(
    name: str, datatype: str, shape: Sequence[int], elements: Any
) -> PlainTensor:
    """Returns the tensor of values in JSON, nested or flat, or of protobuf's typed contents."""
    if datatype == dtypes.BYTES.name:
        flat = np.asarray(elements, dtype=object).reshape(-1).tolist()
        data = dtypes.encode_bytes(
            [each if isinstance(each, bytes) else str(each).encode() for each in flat]
        )
    else:
        data = np.asarray(elements).astype(dtypes.BY_NAME[datatype].numpy).tobytes()
    return PlainTensor(name, datatype, tuple(shape), data)


def input_entry(tensor: PlainTensor, elements: list[Any] | None = None) -> dict[str, Any]:
    """Returns the JSON of an input: with its elements, or with the size of its binary data."""
    entry: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "datatype": tensor.datatype,
    }
    if elements is None:
        return {**entry, "parameters": {"binary_data_size": len(tensor.data)}}
    return {**entry, "data": elements}


def outputs_of_body(document: Document, body: bytes, head_length: int | None) -> list[PlainTensor]:
    """Returns the outputs of an answer over HTTP; those in shared memory have no data in it.

    Args:
        document: The JSON of the answer.
        body: The whole answer, or a view of it, of which the data of the outputs are views then.
        head_length: Bytes of JSON before binary tensors; None: all of the body.
    """
    at = head_length or 0
    outputs = []
    for entry in document.get("outputs", ()):
        parameters = entry.get("parameters", {})
        size = parameters.get("binary_data_size")
        name, datatype, shape = entry["name"], entry["datatype"], entry["shape"]
        if size is not None:
            outputs.append(PlainTensor(name, datatype, tuple(shape), body[at : at + size]))
            at += size
        elif "shared_memory_region" not in parameters:
            outputs.append(tensor_of_elements(name, datatype, shape, entry["data"]))
    return outputs


def model_path(model: str, version: str) -> str:
    """Returns the path of a model, or of one of its versions."""
    path = f"/v2/models/{quoted(model)}"
    return f"{path}/versions/{quoted(version)}" if version else path


def quoted(name: str) -> str:
    """Returns a name as one part of a path."""
    return urllib.parse.quote(name, safe="")


class KserveClient(Protocol):
    """A server that is asked over one of the protocols; every method may raise an `AskError`."""

    def server_metadata(self) -> Document: ...

    def is_model_ready(self, model: str, version: str) -> bool: ...

    def model_metadata(self, model: str, version: str = "") -> Document: ...

    def model_config(self, model: str, version: str = "") -> Document: ...

    def index(self) -> list[Document]:
        """Returns all models of the repositories, with their states."""
        ...

    def statistics(self, model: str = "", version: str = "") -> list[Document]:
        """Returns the statistics of a model's versions, or of all models."""
        ...

    def load(self, model: str, config: str | None = None) -> None:
        """Loads or reloads a model, with its configuration or with another one as JSON."""

    def unload(self, model: str) -> None: ...

    def update_trace(self, settings: Mapping[str, Sequence[str]]) -> None: ...

    def register_memory(self, region: str, key: str, byte_size: int) -> None:
        """Registers system shared memory under the name of a region."""

    def unregister_memory(self, region: str) -> None: ...

    def register_device_memory(
        self, region: str, handle: bytes, device: int, byte_size: int
    ) -> None:
        """Registers GPU memory, by its CUDA IPC handle, under the name of a region."""

    def unregister_device_memory(self, region: str) -> None: ...

    def infer(self, question: ModelQuery) -> ModelAnswer: ...

    def stream(self, question: ModelQuery) -> Iterator[ModelAnswer]:
        """Yields the responses as they come; closing the iterator cancels the request."""
        ...

    def close(self) -> None: ...
