# SPDX-License-Identifier: Apache-2.0
"""What the services of both protocols have in common: inputs, parameters and errors. No I/O.

A service is a server as our clients ask it (`http_service`, `grpc_service`). Its methods have the
names and arguments of the clients of `tritonclient`, as far as ours use them, because programs may
put one of those in its place. Answers are plain: booleans, dictionaries, and arrays by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.client.kserve.records import ModelAnswer, ModelQuery, NamedArray, Parameter
from pytriton.client.tensors import Array, Parameters

_RESERVED = frozenset({"headers", "binary_data_output"})
_RESERVED_PREFIX = "triton_"


class ServiceError(Exception):
    """A server answered with an error, or gRPC failed.

    It has the methods of `tritonclient.utils.InferenceServerException`.

    Args:
        text: the text of the server or of gRPC.
        status: the number of HTTP's status, or the name of gRPC's, such as "StatusCode.CANCELLED".
    """

    def __init__(self, text: str, status: str | None = None) -> None:
        super().__init__(text)
        self._text = text
        self._status = status

    def message(self) -> str:
        return self._text

    def status(self) -> str | None:
        return self._status


class InferInput:
    """An input of a request; its methods are those that programs' tests read."""

    def __init__(self, name: str, datatype: str, array: Array) -> None:
        self.tensor = NamedArray(name, datatype, array)

    def name(self) -> str:
        return self.tensor.name

    def datatype(self) -> str:
        return self.tensor.datatype

    def shape(self) -> tuple[int, ...]:
        return self.tensor.array.shape


class RequestedOutput:
    """An output that a request asks for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name


def query_of(
    model_name: str,
    inputs: Sequence[InferInput],
    model_version: str = "",
    outputs: Sequence[RequestedOutput] = (),
    request_id: str = "",
    parameters: Parameters | None = None,
    **settings: Any,
) -> ModelQuery:
    """Returns the question of a call of `infer`; settings are those of `tensors.split_parameters`.

    Raises:
        ServiceError: A parameter has a name that the protocol needs.
    """
    return ModelQuery(
        model_name,
        model_version,
        tuple([each.tensor for each in inputs]),
        tuple([each.name() for each in outputs]),
        _parameters(parameters or {}, **settings) if parameters or settings else {},
        request_id,
    )


def arrays_of(answer: ModelAnswer) -> dict[str, Array]:
    return {output.name: output.array for output in answer.outputs}


def _parameters(
    given: Parameters,
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    priority: int = 0,
    timeout: int | None = None,
) -> Mapping[str, Parameter]:
    for name in given:
        if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
            raise ServiceError(
                f'Parameter "{name}" is a reserved parameter and cannot be specified.'
            )
    parameters: dict[str, Parameter] = {}
    if sequence_id not in {0, ""}:
        parameters["sequence_id"] = sequence_id
        parameters["sequence_start"] = sequence_start
        parameters["sequence_end"] = sequence_end
    if priority:
        parameters["priority"] = priority
    if timeout is not None:
        parameters["timeout"] = timeout
    return {**parameters, **given}
