# SPDX-License-Identifier: Apache-2.0
"""Plans the instances of a model's instance groups, and the devices that each instance gets."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.rate_limiter import InstanceLimits
from pytriton.serving.repository.loading.plans import InstancePlan

# A model's parameter. With "own", the process of a GPU instance sees only its own device, as number
# 0. It is not the default, because models written for Triton expect the numbers of all devices.
VISIBLE_GPUS = "VISIBLE_GPUS"
CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"nvidia\d+")


def visible_gpu_ids(
    environment: Mapping[str, str] = os.environ, devices: pathlib.Path = pathlib.Path("/dev")
) -> tuple[int, ...]:
    """Returns the numbers of the GPUs that this server's processes see, without using a driver."""
    if environment.get("TRITON_SERVER_CPU_ONLY"):
        return ()
    found = sum(1 for device in devices.glob("nvidia*") if _DEVICE.fullmatch(device.name))
    visible = environment.get(CUDA_DEVICES)
    if visible is not None:
        named = [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
        found = min(found, len(named))
    return tuple(range(found))


def plan_instances(config: Any, visible_devices: str | None = None) -> tuple[InstancePlan, ...]:
    """Plan the instances of a model version.

    Args:
        config: The normalised and validated ModelConfig message.
        visible_devices: The server's CUDA_VISIBLE_DEVICES; device numbers are positions in it.

    Raises:
        InvalidArgumentError: The model's parameter is neither "all" nor "own".
    """
    sees_own_only = _sees_own_device_only(config)
    plans: list[InstancePlan] = []
    for group in config.instance_group:
        for index in range(group.count):
            name = f"{group.name}_{index}"
            plans += _group_plans(name, group, visible_devices, sees_own_only=sees_own_only)
    return tuple(plans)


def _group_plans(
    name: str, group: Any, visible_devices: str | None, *, sees_own_only: bool
) -> Iterator[InstancePlan]:
    kinds = model_config_pb2.ModelInstanceGroup
    kind = kinds.Kind.Name(group.kind).removeprefix("KIND_")
    for gpu in group.gpus if group.kind == kinds.KIND_GPU else (None,):
        environment = {}
        if gpu is not None and sees_own_only:
            environment[CUDA_DEVICES] = _device_name(gpu, visible_devices)
        yield InstancePlan(
            name=name,
            kind=kind,
            device_id=gpu if gpu is not None and not sees_own_only else 0,
            environment=environment,
            limits=InstanceLimits.read(group.rate_limiter, gpu or 0),
            is_passive=group.passive,
        )


def _sees_own_device_only(config: Any) -> bool:
    if VISIBLE_GPUS not in config.parameters:
        return False
    value = config.parameters[VISIBLE_GPUS].string_value
    if value not in ("all", "own"):
        raise InvalidArgumentError(
            f"expected 'all' or 'own' as parameter {VISIBLE_GPUS} of model '{config.name}', "
            f"got '{value}'"
        )
    return bool(value == "own")


def _device_name(gpu: int, visible_devices: str | None) -> str:
    """Returns the driver's name of a device, which may differ from its number in this server."""
    names = [name.strip() for name in (visible_devices or "").split(",") if name.strip()]
    return names[gpu] if gpu < len(names) else str(gpu)
