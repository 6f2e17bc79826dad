# SPDX-License-Identifier: Apache-2.0
"""Converts the tensors of a batch for the model, and its outputs for clients. Pure.

Most models need nothing of it. The exceptions are strings, scalars, ragged batches, and outputs
that are large enough for the model to write them straight into memory that is sent. That saves a
copy: of 1 MiB, 50 of 150 microseconds for a run of an addition and its copy. Below half a MiB it
does not pay, because binding an output takes longer than the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import BY_CONFIG_NAME, DataType
from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.batch_tensors import BatchTensors
from pytriton.runtime.framework_backends.onnxruntime.configuration import OnnxSignature
from pytriton.runtime.framework_backends.shared import is_utf8
from pytriton.runtime.pb_utils.batch import Batch


def decode_strings(array: NDArray[np.object_]) -> tuple[NDArray[np.object_], list[int]]:
    """Decode the elements of a tensor as UTF-8.

    ONNX Runtime would take `bytes` objects for their Python notation (b'...').

    Returns:
        The strings, and the indices of the elements that are not UTF-8, which are empty strings.
    """
    elements: list[Any] = array.ravel().tolist()
    wrong: list[int] = []
    try:
        strings = [element.decode() for element in elements]
    except UnicodeDecodeError:
        wrong = [index for index, element in enumerate(elements) if not is_utf8(element)]
        for index in wrong:
            elements[index] = b""
        strings = [element.decode() for element in elements]
    decoded = np.empty(len(strings), object)
    decoded[:] = strings
    return decoded.reshape(array.shape), wrong


def string_failures(
    name: str, wrong: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, InvalidArgumentError]]:
    """Yields the requests of a batch that `wrong` elements belong to, each with its error.

    Args:
        name: The input.
        wrong: Indices of elements in the whole batch, in ascending order.
        sizes: The number of elements of each request.
    """
    ends = list(accumulate(sizes))
    reported = -1
    for index in wrong:
        position = next(at for at, end in enumerate(ends) if index < end)
        if position != reported:
            reported = position
            element = index - (ends[position] - sizes[position])
            yield (
                position,
                InvalidArgumentError(
                    f"expected UTF-8 in input '{name}', because strings of ONNX Runtime have to be;"
                    f" element {element} is not"
                ),
            )


Arrays = dict[str, NDArray[Any]]


class OnnxTensors:
    """Converts the tensors of one model.

    Args:
        config: The model's configuration, which was checked.
        signature: The declared tensors of the model.

    Attributes:
        changes_inputs: Whether `prepare` has anything to do.
        changes_outputs: Whether `finish` has anything to do.
    """

    def __init__(self, config: Mapping[str, Any], signature: OnnxSignature) -> None:
        declared = {**signature.inputs, **signature.initializers}
        self._computed = BatchTensors(config)
        self._strings = [name for name, info in declared.items() if info.data_type == "TYPE_STRING"]
        # Without batching, a scalar has a dimension of 1 in the configuration.
        batches = config.get("max_batch_size", 0) > 0
        self._scalars = [name for name, info in declared.items() if not info.shape and not batches]
        self._scalar_dims = {
            tensor["name"]: tuple(tensor["dims"])
            for tensor in config["output"]
            if not batches and not signature.outputs[tensor["name"]].shape
        }
        self.changes_inputs = bool(self._strings or self._scalars or self._computed.has_inputs)
        self.changes_outputs = bool(self._scalar_dims or self._computed.has_outputs)

    def prepare(self, batch: Batch) -> Arrays:
        """Returns the inputs of the model; requests with strings that are not UTF-8 fail."""
        inputs = batch.inputs
        if self._computed.has_inputs:
            inputs = self._computed.prepare(inputs, batch.rows, batch.shapes)
        else:
            inputs = dict(inputs)
        for name in self._scalars:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        for name in self._strings:
            if name in inputs:
                inputs[name] = _decoded(name, inputs[name], batch)
        return inputs

    def finish(self, outputs: Arrays, batch: Batch) -> dict[str, Any]:
        """Returns the outputs that are sent."""
        for name, dims in self._scalar_dims.items():
            if name in outputs:
                outputs[name] = outputs[name].reshape(dims)
        if self._computed.has_outputs:
            return self._computed.scatter(outputs, batch.inputs, batch.rows, batch.shapes)
        return outputs


def _decoded(name: str, array: NDArray[Any], batch: Batch) -> NDArray[Any]:
    strings, wrong = decode_strings(array)
    if wrong:
        if name in batch.shapes:
            sizes = [prod(shape) for shape in batch.shapes[name]]
        else:
            total = sum(batch.rows)
            sizes = [array.size * rows // total for rows in batch.rows]
        for position, error in string_failures(name, wrong, sizes):
            batch.fail(position, error)
    return strings


LARGE_BYTES = 512 << 10


class LargeOutputs:
    """The outputs of one model whose shape is known before a run, and that may be large.

    Args:
        config: The model's configuration, which was checked.
        signature: The declared tensors of the model.
    """

    def __init__(self, config: Mapping[str, Any], signature: OnnxSignature) -> None:
        max_rows = config.get("max_batch_size", 0)
        self._is_batching = max_rows > 0
        self._outputs: dict[str, tuple[tuple[int, ...], DataType]] = {}
        if signature.takes_strings:
            return  # ONNX Runtime cannot bind these, so it cannot bind anything
        # The rows of a ragged batch's outputs are not those of its requests.
        scattered = {
            name for each in config.get("batch_output") or () for name in each["target_name"]
        }
        for name, info in signature.outputs.items():
            if name in scattered:
                continue
            shape = info.shape[1:] if self._is_batching else info.shape
            datatype = BY_CONFIG_NAME.get(info.data_type)
            # A string has no size that is known before, and neither has a dimension that varies.
            if datatype is None or not datatype.itemsize or -1 in shape:
                continue
            if max(max_rows, 1) * prod(shape) * datatype.itemsize >= LARGE_BYTES:
                self._outputs[name] = (shape, datatype)

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self._outputs)

    def allocate(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Returns memory for those outputs of a batch that are large, by name."""
        rows = (sum(batch.rows),) if self._is_batching else ()
        places = {}
        for name in batch.output_names:
            if name in self._outputs:
                shape, datatype = self._outputs[name]
                if prod(rows + shape) * datatype.itemsize >= LARGE_BYTES:
                    places[name] = batch.allocate(rows + shape, datatype.numpy)
        return places
