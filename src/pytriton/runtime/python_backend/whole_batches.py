# SPDX-License-Identifier: Apache-2.0
"""Makes what `execute_batch` gets, and checks and splits what it returns, without I/O."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.dtypes import BY_CONFIG_NAME, BYTES, DataType, from_numpy
from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.python_backend.failure_text import RuleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.pb_utils.batch import Batch
    from pytriton.runtime.transport.frames import Execute

FUNCTION = "execute_batch"


def takes_whole_batches(model: Any, *, is_backend: bool, is_decoupled: bool) -> bool:
    """Returns whether a model is called with whole batches.

    A model.py may have written a function of this name for itself, so there `execute` counts if it
    has both. Only `execute` can send several responses.

    Raises:
        RuleError: `execute_batch` is a coroutine function.
        InvalidArgumentError: The model is decoupled, and its backend has no other function.
    """
    function = getattr(model, FUNCTION, None)
    if function is not None and is_decoupled and not hasattr(model, "execute"):
        raise InvalidArgumentError(
            "the model is decoupled, but its backend sends one response for each request: it has"
            f" `{FUNCTION}` and no `execute`"
        )
    if function is None or is_decoupled or (hasattr(model, "execute") and not is_backend):
        return False
    if inspect.iscoroutinefunction(function):
        raise RuleError(f"{FUNCTION} must not be a coroutine function: use `async def execute`.")
    return True


def declared_outputs(model_config: str, names: Sequence[str]) -> dict[str, DataType | None]:
    """Returns the datatypes of a model's outputs and states; None for one without declaration."""
    config = json.loads(model_config)
    kinds = {each["name"]: each.get("data_type") for each in config.get("output", ())}
    for state in config.get("sequence_batching", {}).get("state", ()):
        kinds.setdefault(state.get("output_name"), state.get("data_type"))
    return {name: BY_CONFIG_NAME.get(kinds.get(name, "")) for name in names}


def wanted_by_any(execute: Execute, names: Sequence[str]) -> Sequence[str]:
    """Returns those of all outputs that at least one request wants."""
    if len(execute.outputs) < len(execute.rows):
        return names
    wanted = {name for each in execute.outputs.values() for name in each}
    return [name for name in names if name in wanted]


def checked_outputs(
    result: Any,
    batch: Batch,
    declared: Mapping[str, DataType | None],
    *,
    is_batching: bool,
) -> dict[str, Any]:
    """Returns the wanted outputs: an array of all rows, or a list with an array for each request.

    Raises:
        RuleError: `execute_batch` must not return this.
    """
    if len(batch.failures) == len(batch.rows):
        return {}
    if not isinstance(result, Mapping):
        raise RuleError(f"Expected a dict of arrays from {FUNCTION}, found type '{type(result)}'.")
    row_count = sum(batch.rows) if is_batching else None
    outputs: dict[str, Any] = {}
    for name, value in result.items():
        if name not in declared:
            raise RuleError(
                f"Unexpected output '{name}' from {FUNCTION}, the model's outputs are"
                f" {list(declared)}."
            )
        if name not in batch.output_names:
            continue
        if isinstance(value, (list, tuple)):  # a union would be made anew each time
            outputs[name] = _checked_list(name, value, batch, declared[name])
        else:
            outputs[name] = _checked(name, value, declared[name])
            if row_count is not None and value.shape[:1] != (row_count,):
                raise RuleError(
                    f"Expected {row_count} rows in output '{name}' of {FUNCTION}, one for each row"
                    f" of the batch, found shape {value.shape}."
                )
    return outputs


def _checked_list(
    name: str, value: Sequence[Any], batch: Batch, expected: DataType | None
) -> list[NDArray[Any]]:
    if len(value) != len(batch.rows):
        raise RuleError(
            f"Expected {len(batch.rows)} arrays in output '{name}' of {FUNCTION}, one for each"
            f" request, found {len(value)}."
        )
    return [_checked(name, array, expected) for array in value]


def _checked(name: str, array: Any, expected: DataType | None) -> NDArray[Any]:
    """Returns an array in the byte order of messages."""
    if not isinstance(array, np.ndarray):
        raise RuleError(
            f"Expected a numpy array as output '{name}' of {FUNCTION}, found type '{type(array)}'."
        )
    kind = from_numpy(array.dtype)
    if kind is None or (expected is not None and kind is not expected):
        wanted = "one of Triton's datatypes" if expected is None else expected.config_name
        raise RuleError(
            f"Expected {wanted} in output '{name}' of {FUNCTION}, found an array of {array.dtype}."
        )
    if kind is BYTES:
        _check_texts(name, array)
    elif array.dtype != kind.numpy:
        return array.astype(kind.numpy)
    return array


def _check_texts(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind == "O":
        for element in set(map(type, array.ravel().tolist())):
            if not issubclass(element, bytes | str):
                raise RuleError(
                    f"Expected bytes or str in output '{name}' of {FUNCTION}, found an element of"
                    f" type '{element}'."
                )


def datatype_of(output: Any) -> DataType:
    """Returns the datatype of an output that was checked."""
    array = output[0] if isinstance(output, list) else output
    kind = from_numpy(array.dtype)
    assert kind is not None, "it was checked before"
    return kind


def parts_of(output: Any, rows: Sequence[int], *, is_batching: bool) -> Iterator[NDArray[Any]]:
    """Yields each request's part of an output."""
    if isinstance(output, list):
        yield from output
    elif not is_batching:
        yield output
    else:
        at = 0
        for count in rows:
            yield output[at : at + count]
            at += count
