# SPDX-License-Identifier: Apache-2.0
"""The parameters of gRPC messages: maps from names to values of a few types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferRequest, ParameterValue
from pytriton.base.protos import service_pb2
from pytriton.protocol.kserve_pb_parsed import PbParameter
from pytriton.protocol.sequence import SEQUENCE_FLAGS, check_sequence_id
from pytriton.protocol.shared_memory import REGION

_EMPTY_FINAL = "triton_enable_empty_final_response"
# The parameters that the server uses itself, and their allowed types.
_KNOWN = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
}
_CUSTOM_CHOICES = frozenset({"bool_param", "int64_param", "string_param", "double_param"})


def read_parameters(parameters: Mapping[str, PbParameter], request: InferRequest) -> bool:
    """Read a request's parameters.

    Args:
        parameters: The parameters by name.
        request: Gets the parameters for the model, and those for the scheduler.

    Returns:
        Whether the client wants a final response even if it has no tensors.

    Raises:
        ServerError: A parameter has a wrong type or a reserved name.
    """
    wants_empty_final = False
    for key, (choice, value) in parameters.items():
        known = _KNOWN.get(key)
        if known is not None:
            if choice not in known:
                _refuse_type(key, known)
            _read_known(key, choice, value, request)
        elif key == _EMPTY_FINAL:
            if choice != "bool_param":
                _refuse_type(key, ("bool_param",))
            wants_empty_final = value
        elif key.startswith("triton_"):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
                f"following keys starting with 'triton_' are allowed: {_EMPTY_FINAL}"
            )
        elif choice in _CUSTOM_CHOICES:
            request.parameters[key] = value
        else:
            raise InvalidArgumentError(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or "
                "string_param."
            )
    return wants_empty_final


def _refuse_type(key: str, expected: Sequence[str]) -> NoReturn:
    raise InvalidArgumentError(
        f"invalid value type for '{key}' parameter, expected {' or '.join(expected)}."
    )


def _read_known(key: str, choice: str | None, value: Any, request: InferRequest) -> None:
    if key in SEQUENCE_FLAGS:
        if value:
            request.flags |= SEQUENCE_FLAGS[key]
    elif key == "sequence_id":
        if choice == "string_param":
            request.correlation_id = check_sequence_id(value)
        else:  # the id is unsigned but the field is not: a large id is a negative number in it
            request.correlation_id = value % 2**64
    elif key == "priority":
        if value < 0:
            raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
        request.priority = value
    elif key == "timeout":
        request.timeout_us = value


def class_count(parameters: Mapping[str, Any]) -> int:
    """Returns the number of classes that a requested output's parameters ask for; 0: the tensor.

    Raises:
        InvalidArgumentError: The number is invalid, or the output should go to shared memory.
    """
    count = 0
    if "classification" in parameters:
        parameter = parameters["classification"]
        if parameter.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgumentError(
                "invalid value type for 'classification' parameter, expected int64_param"
            )
        count = parameter.int64_param
        if count <= 0:
            raise InvalidArgumentError(
                "invalid value for 'classification' parameter, expected >= 0"
            )
    if count and REGION in parameters:
        raise InvalidArgumentError(
            "output can't set both 'shared_memory_region' and 'classification'"
        )
    return count


def encode_parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    """Encode the `parameters` field of a response message, to be joined with other fields."""
    message = service_pb2.ModelInferResponse()
    for key, value in parameters.items():
        setattr(message.parameters[key], _CHOICE_BY_TYPE[type(value)], value)
    encoded: bytes = message.SerializeToString()
    return encoded


_CHOICE_BY_TYPE: dict[type, str] = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
}


def set_parameter(parameter: Any, value: ParameterValue) -> None:
    """Set the member of an InferParameter that suits the value."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
