# SPDX-License-Identifier: Apache-2.0
"""Makes the tensors of a batch what the model takes, and its outputs what clients get. Pure.

Most models need nothing of it: their tensors are passed on as they are. The exceptions are strings,
scalars, and ragged batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from numpy.typing import NDArray

from pytriton.runtime.framework_backends.batch_tensors import BatchTensors
from pytriton.runtime.framework_backends.onnxruntime.configuration import OnnxSignature
from pytriton.runtime.framework_backends.onnxruntime.text_tensors import (
    decode_strings,
    string_failures,
)
from pytriton.runtime.pb_utils.batch import Batch

Arrays = dict[str, NDArray[Any]]


class OnnxTensors:
    """Converts the tensors of one model.

    Args:
        config: The model's configuration, which was checked.
        signature: What the model declares.

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
