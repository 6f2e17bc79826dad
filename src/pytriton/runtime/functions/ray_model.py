# SPDX-License-Identifier: Apache-2.0
"""A bound model whose function runs on a Ray cluster: this process only describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.model_config import ModelConfig
from pytriton.runtime.functions.bound_config import (
    AnyModel,
    bound_config,
    call_tensors,
    check_name_and_tensors,
)
from pytriton.runtime.transport.control import RayInstances
from pytriton.runtime.transport.frames import FunctionSource, FunctionTensor

if TYPE_CHECKING:
    from pytriton.model_config.ray_instances import Ray
    from pytriton.model_config.tensor import Tensor

# Parameters of the model's configuration, which models of repositories have, too.
_IDEMPOTENT = "IDEMPOTENT"
_NO_INSTANCE_TIMEOUT = "RAY_NO_INSTANCE_TIMEOUT_S"


@dataclasses.dataclass(frozen=True)
class GivenFunction:
    """The arguments of `bind` for a function that is imported elsewhere."""

    reference: str  # its name, `module:function`
    search_paths: Sequence[str]  # folders in which this process finds modules
    inputs: Sequence[Tensor] | None  # the inputs that were given; None: the annotations say them
    outputs: Sequence[Tensor] | None  # the outputs that were given; None: the annotations say them


class RayModel(AnyModel):
    """A bound model with instances on a cluster, which import its function.

    `inputs` and `outputs` are also those that annotations say. PyTritonValidationError is raised if
    an argument is wrong.
    """

    def __init__(
        self,
        model_name: str,
        function: GivenFunction,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int,
        config: ModelConfig | None,
        instances: Ray,
        *,
        strict: bool,
    ) -> None:
        check_name_and_tensors(model_name, inputs, outputs)
        made = bound_config(
            model_name, model_version, instances.minimum, inputs, outputs, config or ModelConfig()
        )
        super().__init__(model_name, model_version, made)
        call_tensors(self.config)  # it complains of names that are there twice
        if self.config.sequence is not None:
            _check_sequences(model_name, instances)
        self.config.backend_parameters = _parameters(instances)
        self.start_timeout_s = instances.start_timeout_s
        self._function = function
        self._instances = instances
        self._is_strict = strict

    @property
    def ray(self) -> RayInstances:
        """The settings by which the server starts the instances."""
        instances, function = self._instances, self._function
        source = FunctionSource(
            function.reference,
            list(function.search_paths),
            ModelConfigGenerator(self.config).get_config(),
            _as_records(function.inputs),
            _as_records(function.outputs),
            self._is_strict,
        )
        return RayInstances(
            source,
            instances.minimum,
            instances.maximum,
            float(instances.num_cpus),
            float(instances.num_gpus),
            {name: float(amount) for name, amount in instances.resources.items()},
            instances.group_size,
            instances.spread,
            float(instances.start_timeout_s),
            float(instances.target),
            float(instances.scale_up_after_s),
            float(instances.scale_down_after_s),
        )


def _check_sequences(model_name: str, instances: Ray) -> None:
    if instances.is_scaled:
        raise PyTritonValidationError(
            f"Expected a fixed number of instances for model {model_name}, got "
            f"min={instances.minimum} and max={instances.maximum}: a sequence stays with its "
            "instance until it ends. Give count."
        )
    if instances.idempotent:
        raise PyTritonValidationError(
            f"Expected idempotent=False for model {model_name}, got True: its requests belong to "
            "sequences, and the state of a sequence ends with its instance."
        )


def _parameters(instances: Ray) -> dict[str, str]:
    parameters = {}
    if instances.idempotent:
        parameters[_IDEMPOTENT] = "true"
    if instances.no_instance_timeout_s:
        parameters[_NO_INSTANCE_TIMEOUT] = f"{instances.no_instance_timeout_s:g}"
    return parameters


def _as_records(tensors: Sequence[Tensor] | None) -> list[FunctionTensor] | None:
    if tensors is None:
        return None
    return [
        FunctionTensor(
            each.name, list(each.shape), each.dtype.__name__, bool(each.optional), each.device
        )
        for each in tensors
    ]
