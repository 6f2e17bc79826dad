# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of inference methods, and converts them to the model's names and shapes.

These are pure functions that all clients share.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.client.exceptions import PyTritonClientTextError, PyTritonClientValueError
from pytriton.model_config.triton_model_config import TritonModelConfig

Array = NDArray[Any]
Parameters = Mapping[str, str | int | bool]

# The priority level, which starts at 1, and the maximum microseconds in the queue.
QUEUE_PARAMETERS = frozenset({"priority", "timeout"})
# The sequence of the request, a positive number or a text, and whether it is its first or last.
SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})
_SERVER_PARAMETERS = QUEUE_PARAMETERS | SEQUENCE_PARAMETERS


def check_convention(positional: tuple[Array, ...], named: Mapping[str, Array]) -> None:
    """Checks that there is at least one input, and that all are positional or all named.

    Raises:
        PyTritonClientValueError: They are not.
    """
    if not positional and not named:
        raise PyTritonClientValueError("Provide input data: expected at least one array, got none")
    if positional and named:
        raise PyTritonClientValueError(
            "Use either positional either keyword method arguments convention, "
            f"got {len(positional)} positional ones and {', '.join(named)}"
        )


def check_arrays(positional: tuple[Array, ...], named: Mapping[str, Array]) -> None:
    """Checks that all inputs are arrays.

    Raises:
        PyTritonClientValueError: One of them is not.
    """
    for name, value in (*enumerate(positional), *named.items()):
        if not isinstance(value, np.ndarray):
            raise PyTritonClientValueError(
                f"Input {name!r} is not a numpy array: got {type(value).__name__}"
            )


def check_parameters(kind: str, values: Any) -> None:
    """Checks that parameters or headers map text to text, integers or booleans.

    Raises:
        PyTritonClientValueError: They are not.
    """
    if not isinstance(values, dict):
        raise PyTritonClientValueError(f"{kind} must be a dict, got {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(name, str):
            raise PyTritonClientValueError(
                f"{kind}: expected names of type str, got {name!r} of type {type(name).__name__}"
            )
        if not isinstance(value, str | int | bool):
            raise PyTritonClientValueError(
                f"{kind}: expected a value of type str, int or bool for {name!r}, "
                f"got {type(value).__name__}"
            )


def split_parameters(
    parameters: Parameters | None,
) -> tuple[Parameters | None, dict[str, str | int | bool]]:
    """Splits parameters into those for the model and those for the server itself.

    The latter are separate arguments of `infer`.

    Raises:
        PyTritonClientValueError: One of the latter has a wrong type.
    """
    if not parameters or _SERVER_PARAMETERS.isdisjoint(parameters):
        return parameters, {}
    split = {name: parameters[name] for name in _SERVER_PARAMETERS.intersection(parameters)}
    for name, value in split.items():
        if name in ("sequence_start", "sequence_end"):
            is_valid, expected = isinstance(value, bool), "a bool"
        elif name == "sequence_id" and isinstance(value, str):
            continue
        else:
            is_valid, expected = type(value) is int and value >= 0, "an integer of 0 or more"
        if not is_valid:
            raise PyTritonClientValueError(
                f"Parameters: expected {expected} for {name!r}, got {value!r}"
            )
    return {name: v for name, v in parameters.items() if name not in split} or None, split


def name_inputs(
    config: TritonModelConfig, positional: tuple[Array, ...], named: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Returns inputs by name; positional inputs get the model's names in its order.

    Raises:
        PyTritonClientValueError: There are more inputs than the model has.
    """
    if named:
        return named
    names = [spec.name for spec in config.inputs or ()]
    if len(positional) > len(names):
        raise PyTritonClientValueError(
            f"Expected at most {len(names)} inputs for model {config.model_name} "
            f"({', '.join(names) or 'it has none'}), got {len(positional)}"
        )
    return dict(zip(names, positional, strict=False))


def add_batch_axis(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array[np.newaxis, ...] for name, array in inputs.items()}


def remove_batch_axis(outputs: dict[str, Array]) -> dict[str, Array]:
    # In an asyncio stream, an output that a response omits is None.
    return {name: array if array is None else array[0] for name, array in outputs.items()}


def unchanged(outputs: dict[str, Array]) -> dict[str, Array]:
    return outputs


def arrays_in(result: Any) -> dict[str, Array]:
    """Returns the outputs of a result by name: they are it, or it is one of `tritonclient`.

    Raises:
        ValueError: The response is not an inference response.
    """
    if isinstance(result, dict):
        return result
    response = result.get_response()
    try:
        names = (
            [output["name"] for output in response.get("outputs", ())]
            if isinstance(response, dict)
            else [output.name for output in response.outputs]
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"expected an object with outputs, got {response!r:.80}") from error
    return {name: result.as_numpy(name) for name in names}


def datatype_of(name: str, array: Array) -> str:
    """Returns the name of an array's type in the protocol.

    Raises:
        PyTritonClientTextError: The array holds text, but the protocol needs bytes.
        PyTritonClientValueError: The protocol does not have this type.
    """
    kind = array.dtype.kind
    if kind == "U":
        raise PyTritonClientTextError(
            f"Input {name!r}: expected bytes, got text ({array.dtype}). "
            "Encode it first, for example with np.char.encode(array, 'utf-8')."
        )
    if kind == "O" and array.size and not isinstance(array.flat[0], bytes):
        raise PyTritonClientTextError(
            f"Input {name!r}: expected an object array of bytes, "
            f"got elements of type {type(array.flat[0]).__name__}"
        )
    datatype = _datatype_of(array.dtype)
    if datatype is None:
        raise PyTritonClientValueError(
            f"Input {name!r}: expected one of {', '.join(dtypes.BY_NAME)} in native byte order, "
            f"got dtype {array.dtype.str}"
        )
    return datatype


def with_plain_bytes(array: Array) -> Array:
    """Converts elements of other types than bytes and str, such as np.bytes_, to bytes."""
    elements = array.ravel().tolist()
    if set(map(type, elements)) <= {bytes, str}:
        return array
    plain = [bytes(one) if isinstance(one, bytes) else str(one).encode() for one in elements]
    return dtypes.bytes_elements_to_array(plain, array.shape)


@functools.lru_cache(maxsize=256)  # numpy takes 7 us for the name of a dtype
def _datatype_of(dtype: np.dtype[Any]) -> str | None:
    datatype = dtypes.from_numpy(dtype)
    return None if datatype is None or dtype.byteorder == ">" else datatype.name
