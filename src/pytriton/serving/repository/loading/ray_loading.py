# SPDX-License-Identifier: Apache-2.0
"""What is different in the loading of a version whose instances run on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from pytriton.base.errors import UnsupportedError
from pytriton.serving.engine.config_rules import validate_config, validate_contents
from pytriton.serving.repository.reading.ray_settings import (
    DEFAULT_NO_INSTANCE_TIMEOUT_S,
    NO_INSTANCE_TIMEOUT,
    read_scaling,
)

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.worker import Launcher
    from pytriton.serving.engine.rate_limiter import InstanceLimits
    from pytriton.serving.engine.scaling import ScalingSettings
    from pytriton.serving.repository.loading.plans import VersionPlan


async def no_cluster() -> Launcher:
    """Refuse to run models elsewhere, in a server that has no cluster."""
    raise UnsupportedError("this server has no Ray cluster that models could run on")


def check_completed(plan: VersionPlan, config: Any) -> ScalingSettings | None:
    """Check a completed configuration; returns how the model is scaled, None: it is not.

    Raises:
        InvalidArgumentError: It breaks a rule.
    """
    if not plan.on_ray:
        validate_config(config, plan.gpu_ids)
        return None
    validate_contents(config)
    return read_scaling(config)


def with_deadline(plan: VersionPlan, spec: ModelSpec) -> ModelSpec:
    """Returns the specification with a deadline for requests that find no instance on Ray."""
    if not plan.on_ray or NO_INSTANCE_TIMEOUT in plan.config.parameters:
        return spec
    return structs.replace(spec, no_instance_timeout_s=DEFAULT_NO_INSTANCE_TIMEOUT_S)


def limits_of(plan: VersionPlan, scaling: ScalingSettings | None) -> list[InstanceLimits]:
    """Returns the limits of all instances that a version may have at a time."""
    if scaling is not None:
        return [plan.instances[0].limits] * scaling.maximum
    return [each.limits for each in plan.instances]
