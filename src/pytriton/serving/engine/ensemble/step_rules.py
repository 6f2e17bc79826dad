# SPDX-License-Identifier: Apache-2.0
"""The rules between an ensemble and the models of its steps, with Triton's messages.

The configurations are normalised messages; those of nested ensembles are complete: they say whether
the ensemble is decoupled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2

_VARIABLE = -1


@dataclass(frozen=True, slots=True)
class _Inferred:
    """What one model says about a tensor of the ensemble."""

    model: str
    data_type: int
    dims: tuple[int, ...]  # without the batch dimension
    full_dims: tuple[int, ...]


def complete_ensemble(config: Any, models: Mapping[str, Any]) -> Any:
    """Check an ensemble against the models of its steps and fill in what follows from them.

    An ensemble is decoupled if a step is, whatever its file says.

    Args:
        config: The normalised ModelConfig message of the ensemble, which is not changed.
        models: The configurations of its composing models by name.

    Returns:
        A new message.

    Raises:
        InvalidArgumentError: for the first rule that is broken.
    """
    validate_steps(config, models)
    complete = model_config_pb2.ModelConfig()
    complete.CopyFrom(config)
    steps = config.ensemble_scheduling.step
    complete.model_transaction_policy.decoupled = any(
        models[step.model_name].model_transaction_policy.decoupled for step in steps
    )
    return complete


def validate_steps(config: Any, models: Mapping[str, Any]) -> None:
    """Check an ensemble against the models of its steps.

    Args:
        config: The ModelConfig message of the ensemble.
        models: The configurations of its composing models by name.

    Raises:
        InvalidArgumentError: for the first rule that is broken.
    """
    tensors: dict[str, _Inferred] = {}
    for tensor in (*config.input, *config.output):
        # The reshape of an ensemble's own tensor counts, that of a step's does not.
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        tensors[tensor.name] = _inferred(config, tensor, tuple(dims))
    for step in config.ensemble_scheduling.step:
        if step.model_name not in models:
            raise InvalidArgumentError(
                f"ensemble {config.name} contains models that are not available or ambiguous: "
                f"{step.model_name}"
            )
    for step in config.ensemble_scheduling.step:
        _check_step(config, step, models[step.model_name], tensors)
    _check_decoupled_sources(config, models)


def _inferred(model: Any, tensor: Any, dims: tuple[int, ...]) -> _Inferred:
    full_dims = (_VARIABLE, *dims) if model.max_batch_size > 0 else dims
    return _Inferred(model.name, tensor.data_type, dims, full_dims)


def _check_step(config: Any, step: Any, model: Any, tensors: dict[str, _Inferred]) -> None:
    name = config.name
    if 0 < model.max_batch_size < config.max_batch_size:
        raise InvalidArgumentError(
            f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains "
            f"model {model.name} which only allows maximum batch size to be {model.max_batch_size}"
        )
    inputs = {tensor.name: tensor for tensor in model.input}
    for key in sorted(step.input_map):
        tensor_name = step.input_map[key]
        if key not in inputs:
            raise InvalidArgumentError(
                f"in ensemble {name}, ensemble tensor {tensor_name} is mapping to non-existing "
                f"input {key} in model {model.name}"
            )
        _check_tensor(config, tensors, tensor_name, model, inputs[key])
    for tensor in model.input:
        if tensor.name not in step.input_map and not tensor.optional:
            raise InvalidArgumentError(
                f"in ensemble {name}, input {tensor.name} in model {model.name} is not mapped to "
                "any ensemble tensors"
            )
    outputs = {tensor.name: tensor for tensor in model.output}
    for key in sorted(step.output_map):
        tensor_name = step.output_map[key]
        if key not in outputs:
            raise InvalidArgumentError(
                f"in ensemble {name}, ensemble tensor {tensor_name} is mapped from non-existing "
                f"output {key} in model {model.name}"
            )
        _check_tensor(config, tensors, tensor_name, model, outputs[key])


def _check_tensor(
    config: Any, tensors: dict[str, _Inferred], name: str, model: Any, tensor: Any
) -> None:
    """Compare what a model says about a tensor with what was said about it first."""
    new = _inferred(model, tensor, tuple(tensor.dims))
    known = tensors.setdefault(name, new)
    label = f"in ensemble {config.name}, ensemble tensor {name}: inconsistent"
    if known.data_type != new.data_type:
        raise InvalidArgumentError(
            f"{label} data type: {_type_name(known)} is inferred from model {known.model} while "
            f"{_type_name(new)} is inferred from model {new.model}"
        )
    # A model with and one without a batch dimension may share a tensor: either the first has one
    # more dimension, or the second has the batch dimension as one of its own.
    if not _fits(known.dims, new.dims) and not _fits(known.full_dims, new.full_dims):
        raise InvalidArgumentError(
            f"{label} shape: {_shape_text(known.full_dims)} is inferred from model {known.model} "
            f"while {_shape_text(new.full_dims)} is inferred from model {new.model}"
        )


def _fits(first: Sequence[int], second: Sequence[int]) -> bool:
    if len(first) != len(second):
        return False
    return all(
        _VARIABLE in sizes or sizes[0] == sizes[1] for sizes in zip(first, second, strict=True)
    )


def _type_name(tensor: _Inferred) -> str:
    return str(model_config_pb2.DataType.Name(tensor.data_type))


def _shape_text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _check_decoupled_sources(config: Any, models: Mapping[str, Any]) -> None:
    """Refuse steps whose inputs, and ensembles whose outputs, do not come in the same numbers.

    Each tensor has a source: the last decoupled step that it passed, or the request.
    """
    steps = list(config.ensemble_scheduling.step)
    request = -1  # the source of tensors that exist once; others have the number of a step
    sources = {tensor.name: request for tensor in config.input}
    waiting = list(range(len(steps)))
    while waiting:
        ready = [i for i in waiting if all(t in sources for t in steps[i].input_map.values())]
        if not ready:
            return  # a cycle, which `validate_ensemble` has refused
        for index in ready:
            waiting.remove(index)
            step = steps[index]
            source = _common_source(config, [sources[t] for t in step.input_map.values()])
            if models[step.model_name].model_transaction_policy.decoupled:
                source = index
            for tensor in step.output_map.values():
                sources.setdefault(tensor, source)
    _common_source(config, [sources[tensor.name] for tensor in config.output])


def _common_source(config: Any, sources: list[int]) -> int:
    if len(set(sources)) > 1:
        # Triton names the ensemble where it means the step.
        raise InvalidArgumentError(
            f"in ensemble {config.name}, step of model '{config.name}' receives inputs originated "
            "from different decoupled models"
        )
    return sources[0]
