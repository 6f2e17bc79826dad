# SPDX-License-Identifier: Apache-2.0
"""What is asked of a server and what it answers, the same for both protocols."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes

Document = Mapping[str, Any]  # as the server's JSON
Parameter = str | bool | int | float


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
    data: bytes

    @classmethod
    def of(cls, tensor: NamedArray) -> PlainTensor:
        array = tensor.array
        if tensor.datatype == dtypes.BYTES.name:
            data = dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
        else:
            data = np.ascontiguousarray(array).tobytes()
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

    def infer(self, question: ModelQuery) -> ModelAnswer: ...

    def stream(self, question: ModelQuery) -> Iterator[ModelAnswer]:
        """Yields the responses as they come; closing the iterator cancels the request."""
        ...

    def close(self) -> None: ...
