# SPDX-License-Identifier: Apache-2.0
"""Plans the instances of a model: their devices, or their places on a Ray cluster.

On Ray, the number of actors is that of instances, and Ray chooses their nodes and GPUs, so the
machine of the server needs no GPU. Settings for Ray are parameters of the model.
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2
from pytriton.base.settings import DEFAULT_START_TIMEOUT_S
from pytriton.runtime.executor.worker import Placement
from pytriton.serving.engine.rate_limiter import InstanceLimits
from pytriton.serving.repository.loading.instance_scaler import ScalingSettings
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
        names = map(str.strip, visible.split(","))
        # CUDA sees none from the first one on that is no device.
        named = list(itertools.takewhile(lambda name: name not in ("", "-1"), names))
        found = min(found, len(named))
    return tuple(range(found))


def plan_instances(config: Any, visible_devices: str | None = None) -> tuple[InstancePlan, ...]:
    """Plan the instances of a model version.

    Device numbers are positions in `visible_devices`, the server's CUDA_VISIBLE_DEVICES.
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


NUM_CPUS = "RAY_NUM_CPUS"
NUM_GPUS = "RAY_NUM_GPUS"
RESOURCES = "RAY_RESOURCES"
MIN_INSTANCES = "RAY_MIN_INSTANCES"
MAX_INSTANCES = "RAY_MAX_INSTANCES"
TARGET = "RAY_TARGET"
UP_AFTER = "RAY_UP_AFTER_S"
DOWN_AFTER = "RAY_DOWN_AFTER_S"
GROUP_SIZE = "RAY_GROUP_SIZE"
SPREAD = "RAY_SPREAD"
START_TIMEOUT = "RAY_START_TIMEOUT_S"
NO_INSTANCE_TIMEOUT = "RAY_NO_INSTANCE_TIMEOUT_S"  # read by the engine
# A request waits so long for the next instance if the model does not say it: longer than a restart
# takes, which was 4 to 17 s, and shorter than the minute after which proxies and clients give up.
DEFAULT_NO_INSTANCE_TIMEOUT_S = 30.0

_PREFIX = "RAY_"
_LEAST = 0.0001  # Ray counts resources in these units
_KNOWN = frozenset(
    {NUM_CPUS, NUM_GPUS, RESOURCES, MIN_INSTANCES, MAX_INSTANCES, TARGET, UP_AFTER, DOWN_AFTER}
    | {GROUP_SIZE, SPREAD, START_TIMEOUT, NO_INSTANCE_TIMEOUT}
)
_SCALES = frozenset({MIN_INSTANCES, MAX_INSTANCES})
_OF_SCALING = frozenset({TARGET, UP_AFTER, DOWN_AFTER})
_BOOLEANS = {"true": True, "false": False}
# Resources that Ray takes in another way, with that way.
_OTHERWISE = {"CPU": NUM_CPUS, "GPU": NUM_GPUS, "memory": "", "object_store_memory": ""}
_KINDS = model_config_pb2.ModelInstanceGroup


def choose_kinds(config: Any) -> None:
    """Fill in the kind of instance groups without one: GPU if the model asks for GPUs, else CPU.

    The message is changed.
    """
    kind = _KINDS.KIND_GPU if _number(config, NUM_GPUS, 0.0) else _KINDS.KIND_CPU
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for group in config.instance_group:
        if group.kind == _KINDS.KIND_AUTO:
            group.kind = kind


def plan_ray_instances(
    config: Any, start_timeout_s: float = DEFAULT_START_TIMEOUT_S
) -> tuple[InstancePlan, ...]:
    """Plan the instances that a version has at first, each with its placement."""
    scaling = read_scaling(config)
    base = _read_placement(config, start_timeout_s)
    plans: list[InstancePlan] = []
    for group in config.instance_group:
        _check_group(config, group)
        first = InstancePlan(
            name=f"{group.name}_0",
            kind=_KINDS.Kind.Name(group.kind).removeprefix("KIND_"),
            limits=InstanceLimits.read(group.rate_limiter, 0),
            is_passive=group.passive,
            placement=structs.replace(base, num_gpus=_gpus(config, group)),
        )
        count = group.count if scaling is None else scaling.minimum
        plans += map(first.numbered, range(count))
    if _number(config, NUM_GPUS, 0.0) and not any(plan.kind != "CPU" for plan in plans):
        raise InvalidArgumentError(
            f"parameter {NUM_GPUS} of model '{config.name}' asks for GPUs, but its instance groups "
            "have kind KIND_CPU; give them KIND_GPU, or no kind"
        )
    return tuple(plans)


def completion_placement(placement: Placement) -> Placement:
    """Returns where the process runs that completes a configuration: as an instance, without GPU.

    Its packages may be only there; it does not execute the model.
    """
    return structs.replace(
        placement, num_cpus=min(1.0, placement.num_cpus), num_gpus=0.0, group_size=1
    )


def read_scaling(config: Any) -> ScalingSettings | None:
    """Returns between which numbers of instances a model is scaled; None: it is not."""
    if MIN_INSTANCES not in config.parameters and MAX_INSTANCES not in config.parameters:
        return None
    if len(config.instance_group) != 1:
        raise InvalidArgumentError(
            f"parameters {MIN_INSTANCES} and {MAX_INSTANCES} of model '{config.name}' need one "
            f"instance group, which is scaled, but it has {len(config.instance_group)}"
        )
    count = config.instance_group[0].count
    minimum = _integer(config, MIN_INSTANCES, count)
    maximum = _integer(config, MAX_INSTANCES, count)
    if minimum > maximum:
        missing = _SCALES - config.parameters.keys()
        hint = "; the one that is missing is the count of the instance group" if missing else ""
        raise InvalidArgumentError(
            f"model '{config.name}' has at least {minimum} instances, but at most {maximum}: "
            f"expected {MIN_INSTANCES} <= {MAX_INSTANCES}{hint}"
        )
    if minimum == maximum:
        return None if minimum == count else ScalingSettings(minimum=minimum, maximum=maximum)
    if config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            f"model '{config.name}' cannot be scaled from {minimum} to {maximum} instances: it has "
            "sequence batching, and a sequence stays with its instance until it ends; expected "
            f"{MIN_INSTANCES} = {MAX_INSTANCES}"
        )
    default = ScalingSettings()
    return ScalingSettings(
        minimum=minimum,
        maximum=maximum,
        target=_positive(config, TARGET, default.target),
        up_after_s=_number(config, UP_AFTER, default.up_after_s),
        down_after_s=_number(config, DOWN_AFTER, default.down_after_s),
    )


def ineffective_parameters(config: Any) -> list[str]:
    """Returns remarks for operators on parameters for Ray that have no effect."""
    remarks = []
    for name in sorted(config.parameters):
        what = f"parameter {name} of model '{config.name}'"
        if name in _OF_SCALING and not _SCALES & config.parameters.keys():
            remarks.append(f"{what} has no effect without {MIN_INSTANCES} or {MAX_INSTANCES}")
        elif name not in _KNOWN and name.upper().startswith(_PREFIX):
            near = difflib.get_close_matches(name.upper(), _KNOWN, n=1, cutoff=0.75)
            remarks.append(f"{what} has no meaning" + (f"; {near[0]} has one" if near else ""))
    return remarks


def _read_placement(config: Any, start_timeout_s: float) -> Placement:
    default = Placement()
    return Placement(
        num_cpus=_quantity(config, NUM_CPUS, default.num_cpus),
        resources=_resources(config),
        group_size=_integer(config, GROUP_SIZE, default.group_size),
        is_spread=_boolean(config, SPREAD, default=default.is_spread),
        start_timeout_s=_positive(config, START_TIMEOUT, start_timeout_s),
    )


def _gpus(config: Any, group: Any) -> float:
    if group.kind == _KINDS.KIND_CPU:
        return 0.0
    gpus = _quantity(config, NUM_GPUS, 1.0 if group.kind == _KINDS.KIND_GPU else 0.0)
    if gpus > 1 and not gpus.is_integer():  # a rule of Ray
        raise _wrong(config, NUM_GPUS, "a whole number or one below 1")
    if not gpus and group.kind == _KINDS.KIND_GPU:
        raise _wrong(config, NUM_GPUS, "a number greater than 0, as its instances are KIND_GPU,")
    return gpus


def _check_group(config: Any, group: Any) -> None:
    label = f"instance group {group.name} of model {config.name}"
    if group.kind not in _KINDS.Kind.values():
        raise InvalidArgumentError(f"{label} has unknown kind {group.kind}")
    if group.gpus:
        named = ", ".join(map(str, group.gpus))
        raise InvalidArgumentError(
            f"{label} names GPUs ({named}), but it runs on Ray, and Ray chooses the GPUs; remove "
            f"'gpus', and ask for a number of them with the parameter {NUM_GPUS}"
        )


def _text(config: Any, name: str) -> str | None:
    return config.parameters[name].string_value if name in config.parameters else None


def _wrong(config: Any, name: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"expected {expected} as parameter {name} of model '{config.name}', "
        f"got '{_text(config, name)}'"
    )


def _amount(text: str) -> float:
    """Returns a number that is not negative; NaN for any other text."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if 0.0 <= number < math.inf else math.nan


def _number(config: Any, name: str, default: float) -> float:
    text = _text(config, name)
    number = default if text is None else _amount(text)
    if math.isnan(number):
        raise _wrong(config, name, "a number of at least 0")
    return number


def _quantity(config: Any, name: str, default: float) -> float:
    """Returns how much an actor takes of something that Ray counts."""
    number = _number(config, name, default)
    if 0.0 < number < _LEAST:
        raise _wrong(config, name, f"0 or at least {_LEAST:g}")
    return number


def _positive(config: Any, name: str, default: float) -> float:
    text = _text(config, name)
    number = default if text is None else _amount(text)
    if not number > 0.0:
        raise _wrong(config, name, "a number greater than 0")
    return number


def _integer(config: Any, name: str, default: int) -> int:
    text = _text(config, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or not int(text):
        raise _wrong(config, name, "an integer of at least 1")
    return int(text)


def _boolean(config: Any, name: str, *, default: bool) -> bool:
    text = _text(config, name)
    if text is None:
        return default
    if text.lower() not in _BOOLEANS:
        raise _wrong(config, name, "'true' or 'false'")
    return _BOOLEANS[text.lower()]


def _resources(config: Any) -> dict[str, float]:
    resources: dict[str, float] = {}
    for part in (_text(config, RESOURCES) or "").split(","):
        name, equals, text = (each.strip() for each in part.partition("="))
        if not part.strip():
            continue
        amount = _amount(text)
        if not (name and equals and amount >= _LEAST) or name in resources:
            expected = f"<name>=<amount>,... with each name once and amounts of at least {_LEAST:g}"
            raise _wrong(config, RESOURCES, expected)
        if name in _OTHERWISE:
            instead = _OTHERWISE[name]
            hint = f"; use {instead}" if instead else ""
            raise _wrong(config, RESOURCES, f"names that nodes declare, not {name}{hint},")
        resources[name] = amount
    return resources
