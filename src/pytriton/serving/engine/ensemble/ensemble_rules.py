# SPDX-License-Identifier: Apache-2.0
"""The rules that the configuration of an ensemble must follow on its own, with Triton's messages.

Whether it fits to the models of its steps is checked in `step_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytriton.base.errors import InvalidArgumentError

NEWEST = -1  # the version in a step that stands for the newest one


@dataclass(slots=True)
class _Tensor:
    """A tensor of an ensemble, and what must be known before it is."""

    name: str
    sources: list[_Tensor] = field(default_factory=list)  # the inputs of the step that writes it
    is_written: bool = False  # by a step or by the client
    is_read: bool = False
    is_known: bool = False  # all that it depends on is known


def composing_models(config: Any) -> list[tuple[str, int]]:
    """Returns the models and versions of an ensemble's steps in their order, each once.

    Args:
        config: The ModelConfig message; a model that is no ensemble has no steps.
    """
    steps = config.ensemble_scheduling.step
    return list(dict.fromkeys((step.model_name, step.model_version) for step in steps))


def validate_ensemble(config: Any) -> None:
    """Check the configuration of an ensemble, without its steps' models.

    Args:
        config: The ModelConfig message.

    Raises:
        InvalidArgumentError: for the first rule that the configuration breaks.
    """
    name = config.name
    _check_fields(config)
    tensors: dict[str, _Tensor] = {}
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


def _add_step(tensors: dict[str, _Tensor], config: Any, index: int, step: Any) -> None:
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


def _tensor(tensors: dict[str, _Tensor], name: str) -> _Tensor:
    return tensors.setdefault(name, _Tensor(name))


def _mark_known(tensors: Mapping[str, _Tensor], inputs: set[str]) -> None:
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


def _check_known(config: Any, output: _Tensor) -> None:
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

    Args:
        name: The ensemble.
        configs: The configurations of all models by name; a model that is missing has no steps.
        find: Returns the model that an ensemble means by a name, given both; None: that name.
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
