# SPDX-License-Identifier: Apache-2.0
"""The rules for ensembles and the models of their steps, with Triton's messages.

All configurations are normalised messages; those of nested ensembles are complete: they say whether
the ensemble is decoupled. Each check raises InvalidArgumentError for the first broken rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2
from pytriton.base.request_words import shape_text

NEWEST = -1  # the version in a step or a call that stands for the newest one


def version_text(version: int) -> str:
    """Returns a version as requests name it: the newest one has an empty name."""
    return "" if version == NEWEST else str(version)


@dataclass(slots=True)
class _EnsembleTensor:
    """A tensor of an ensemble, and what must be known before it is."""

    name: str
    sources: list[_EnsembleTensor] = field(
        default_factory=list
    )  # the inputs of the step that writes it
    is_written: bool = False  # by a step or by the client
    is_read: bool = False
    is_known: bool = False  # all that it depends on is known


def composing_models(config: Any) -> list[tuple[str, int]]:
    """Returns the models and versions of an ensemble's steps in their order, each once."""
    steps = config.ensemble_scheduling.step
    return list(dict.fromkeys((step.model_name, step.model_version) for step in steps))


def validate_ensemble(config: Any) -> None:
    """Check the configuration of an ensemble, without its steps' models."""
    name = config.name
    _check_fields(config)
    tensors: dict[str, _EnsembleTensor] = {}
    for index, step in enumerate(config.ensemble_scheduling.step):
        _add_step(tensors, config, index, step)
    for tensor in config.input:
        if tensor.name not in tensors:
            raise InvalidArgumentError(
                f"ensemble input '{tensor.name}' for ensemble {name}' is not used"
            )
        tensors[tensor.name].is_written = True
    _mark_known(tensors, {tensor.name for tensor in config.input})
    for tensor in config.output:
        if tensor.name not in tensors:
            raise InvalidArgumentError(
                f"ensemble output '{tensor.name}' for ensemble {name}' is not used"
            )
        tensors[tensor.name].is_read = True
        _check_known(config, tensors[tensor.name])
    for each in tensors.values():
        if not (each.is_written and each.is_read):
            raise InvalidArgumentError(
                f"ensemble tensor '{each.name}' is unused in ensemble '{name}'"
            )


def _check_fields(config: Any) -> None:
    name = config.name
    if config.instance_group:
        raise InvalidArgumentError(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise InvalidArgumentError(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise InvalidArgumentError(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        raise InvalidArgumentError(f"must specify 'step' for ensemble '{name}'")


def _add_step(tensors: dict[str, _EnsembleTensor], config: Any, index: int, step: Any) -> None:
    for each in ("model_name", "input_map", "output_map"):
        if not getattr(step, each):
            raise InvalidArgumentError(
                f"must specify '{each}' in step {index} of ensemble '{config.name}'"
            )
    sources = []
    for key in sorted(step.input_map):
        source = _tensor(tensors, step.input_map[key])
        source.is_read = True
        sources.append(source)
    for key in sorted(step.output_map):
        target = _tensor(tensors, step.output_map[key])
        if target.is_written:
            raise InvalidArgumentError(
                f"ensemble tensor '{target.name}' can appear in an output map only once for "
                f"ensemble '{config.name}' step {index}"
            )
        target.is_written = True
        target.sources = sources


def _tensor(tensors: dict[str, _EnsembleTensor], name: str) -> _EnsembleTensor:
    return tensors.setdefault(name, _EnsembleTensor(name))


def _mark_known(tensors: Mapping[str, _EnsembleTensor], inputs: set[str]) -> None:
    """Mark the tensors that are known in the end if those named `inputs` are known."""
    for name in inputs:
        tensors[name].is_known = True
    while True:
        new = [
            tensor
            for tensor in tensors.values()
            if not tensor.is_known
            and tensor.sources
            and all(source.is_known for source in tensor.sources)
        ]
        if not new:
            return
        for tensor in new:
            tensor.is_known = True


def _check_known(config: Any, output: _EnsembleTensor) -> None:
    """Refuse an output that no step can write, with the tensor that is missing for it."""
    if output.is_known:
        return
    missing, seen = output, {output.name}
    while True:
        unknown = next((each for each in missing.sources if not each.is_known), None)
        if unknown is None or unknown.name in seen:
            break
        missing = unknown
        seen.add(missing.name)
    text = f"output '{output.name}' for ensemble '{config.name}' is not written"
    if missing is not output:
        text += f": at least one of its depending tensors, '{missing.name}', is not connected"
    raise InvalidArgumentError(text)


def circular_dependency(
    name: str, configs: Mapping[str, Any], find: Callable[[str, str], str] | None = None
) -> str | None:
    """Returns Triton's message if an ensemble is among its own steps, also indirectly; else None.

    `configs` has all models by name. `find` returns the model that an ensemble means by a name.
    """
    seen = {name}
    pending = [name]
    while pending:
        current = pending.pop()
        if current not in configs:
            continue
        for step_name, _ in composing_models(configs[current]):
            step = step_name if find is None else find(current, step_name)
            if step == name:
                return (
                    f"circular dependency between ensembles: {name} -> ... -> {current} -> {name}"
                )
            if step not in seen:
                seen.add(step)
                pending.append(step)
    return None


_VARIABLE = -1


@dataclass(frozen=True, slots=True)
class _Inferred:
    """The type and shape of an ensemble's tensor, according to one model."""

    model: str
    data_type: int
    dims: tuple[int, ...]  # without the batch dimension
    full_dims: tuple[int, ...]


def complete_ensemble(config: Any, models: Mapping[str, Any]) -> Any:
    """Check an ensemble against the models of its steps and fill in what follows from them.

    An ensemble is decoupled if a step is, whatever its file says. `models` are the configurations
    of its composing models by name.
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
    """Check an ensemble against the models of its steps."""
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
            f"{label} shape: {shape_text(known.full_dims)} is inferred from model {known.model} "
            f"while {shape_text(new.full_dims)} is inferred from model {new.model}"
        )


def _fits(first: Sequence[int], second: Sequence[int]) -> bool:
    if len(first) != len(second):
        return False
    return all(
        _VARIABLE in sizes or sizes[0] == sizes[1] for sizes in zip(first, second, strict=True)
    )


def _type_name(tensor: _Inferred) -> str:
    return str(model_config_pb2.DataType.Name(tensor.data_type))


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
