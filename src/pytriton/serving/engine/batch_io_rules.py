# SPDX-License-Identifier: Apache-2.0
"""The rules for `batch_input` and `batch_output` of a model configuration, with Triton's messages.

Backends of compiled frameworks compute such tensors for ragged batches. A model of the Python
backend gets each request's tensor with its own shape instead, and does not see them.
"""

from __future__ import annotations

from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2

_COUNT_TYPES = (model_config_pb2.TYPE_INT32, model_config_pb2.TYPE_FP32)


def check_batch_tensors(config: Any) -> None:
    """Check the computed inputs and outputs of a batch.

    Raises:
        InvalidArgumentError: for the first rule that the configuration breaks.
    """
    input_names = {tensor.name for tensor in config.input}
    for batch_input in config.batch_input:
        _check_source(config, "input", batch_input, input_names)
        if batch_input.data_type not in _COUNT_TYPES:
            raise InvalidArgumentError(_data_type_problem(config, batch_input.data_type))
    output_names = {tensor.name for tensor in config.output}
    for batch_output in config.batch_output:
        _check_source(config, "output", batch_output, input_names)
        _check_targets(config, batch_output, output_names)


def _check_source(config: Any, kind: str, tensor: Any, input_names: set[str]) -> None:
    kinds = tensor.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number
    if tensor.kind not in kinds:
        raise InvalidArgumentError(f"batch {kind} has unknown kind {tensor.kind} for {config.name}")
    name, sources = kinds[tensor.kind].name, tensor.source_input
    if len(sources) != 1:
        raise InvalidArgumentError(
            f"batch {kind} kind '{name}' expects 1 source input, got {len(sources)} "
            f"for {config.name}"
        )
    if sources[0] not in input_names:
        raise InvalidArgumentError(f"unknown source input name '{sources[0]}' for {config.name}")


def _data_type_problem(config: Any, data_type: int) -> str:
    if data_type == model_config_pb2.TYPE_INVALID:
        return "unexpected batch input data type 'TYPE_INVALID'"
    return f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}"


def _check_targets(config: Any, batch_output: Any, output_names: set[str]) -> None:
    if not batch_output.target_name:
        raise InvalidArgumentError(f"batch output must specify 'target_name' for {config.name}")
    seen = set()
    for name in batch_output.target_name:
        if name not in output_names:
            raise InvalidArgumentError(f"unknown target output name '{name}' for {config.name}")
        if name in seen:
            raise InvalidArgumentError(
                f"target output name '{name}' can only be specified once for {config.name}"
            )
        seen.add(name)
