# SPDX-License-Identifier: Apache-2.0
"""What is asked of a server and what it answers, the same for both protocols."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

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
class Question:
    """A request for inference."""

    model: str
    version: str  # empty: the server decides
    inputs: tuple[NamedArray, ...]
    outputs: tuple[str, ...] = ()  # empty: all
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    request_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A response to a request for inference."""

    model: str
    version: str
    request_id: str
    parameters: Mapping[str, Parameter]
    outputs: tuple[NamedArray, ...]


class Server(Protocol):
    """A server that is asked over one of the protocols; every method may raise an `AskError`."""

    def server_metadata(self) -> Document: ...

    def is_model_ready(self, model: str, version: str) -> bool: ...

    def model_metadata(self, model: str, version: str) -> Document: ...

    def model_config(self, model: str, version: str) -> Document: ...

    def index(self) -> list[Document]:
        """Returns all models of the repositories, with their states."""
        ...

    def statistics(self) -> list[Document]: ...

    def infer(self, question: Question) -> Answer: ...

    def stream(self, question: Question) -> Iterator[Answer]:
        """Yields the responses as they come; closing the iterator cancels the request."""
        ...

    def close(self) -> None: ...


def raw_bytes(tensor: NamedArray) -> bytes:
    """Returns the bytes of a tensor as the protocol has them."""
    if tensor.datatype == dtypes.BYTES.name:
        return dtypes.encode_bytes(dtypes.array_to_bytes_elements(tensor.array))
    return np.ascontiguousarray(tensor.array).tobytes()


def array_of_raw(data: bytes, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns the array of bytes as the protocol has them."""
    if datatype == dtypes.BYTES.name:
        return dtypes.bytes_elements_to_array(dtypes.decode_bytes(data), shape)
    return np.frombuffer(data, dtypes.BY_NAME[datatype].numpy).reshape(shape)


def array_of_elements(elements: Any, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns the array of values in JSON or of protobuf's typed contents."""
    if datatype == dtypes.BYTES.name:
        flat = np.asarray(elements, dtype=object).reshape(-1).tolist()
        texts = [each.encode() if isinstance(each, str) else bytes(each) for each in flat]
        return dtypes.bytes_elements_to_array(texts, shape)
    return np.asarray(elements).astype(dtypes.BY_NAME[datatype].numpy).reshape(shape)
