# SPDX-License-Identifier: Apache-2.0
"""The users' settings of batching, queueing, rate limits and warm-up, and the data of warm-ups."""

from __future__ import annotations

import dataclasses
import enum
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.tensor import triton_datatype
from pytriton.utils.checks import check_list, check_plain_fields, check_type


class DeviceKind(enum.Enum):
    """The kind of device for the instances of a model."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"
    KIND_MODEL = "KIND_MODEL"


class TimeoutAction(enum.Enum):
    """What happens to a request whose queue timeout has expired."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclasses.dataclass
class QueuePolicy:
    """The policy of a queue of the dynamic batcher.

    Args:
        timeout_action: what happens to a request whose timeout has expired.
        default_timeout_microseconds: how long a request may wait; 0 means no limit.
        allow_timeout_override: whether a request may set a shorter timeout.
        max_queue_size: number of requests that may wait; 0 means no limit.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def __post_init__(self) -> None:
        check_plain_fields(self)
        check_type(self.timeout_action, "timeout_action of QueuePolicy", TimeoutAction)


@dataclasses.dataclass
class DynamicBatcher:
    """How the server combines requests to batches.

    Args:
        max_queue_delay_microseconds: how long a request may wait for others to join it.
        preferred_batch_size: sizes at which a batch does not wait any longer.
        preserve_ordering: whether responses are sent in the order in which requests arrived.
        priority_levels: number of priority levels, 1 is the highest; 0 means no priorities.
        default_priority_level: level of a request without a priority.
        default_queue_policy: policy of the levels that are not in `priority_queue_policy`.
        priority_queue_policy: policies by priority level.
    """

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: list[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[int, QueuePolicy] | None = None

    def __post_init__(self) -> None:
        check_plain_fields(self)
        if self.preferred_batch_size is not None:
            check_list(self.preferred_batch_size, "preferred_batch_size", int, "integers")
        default = self.default_queue_policy
        check_type(default, "default_queue_policy", QueuePolicy, type(None))
        check_type(self.priority_queue_policy, "priority_queue_policy", dict, type(None))
        for policy in (self.priority_queue_policy or {}).values():
            check_type(policy, "policy of a priority level", QueuePolicy)


@dataclasses.dataclass
class WarmupInput:
    """The data of one input of a warm-up request, from the first source that is set.

    Args:
        dtype: type of the elements, as in `Tensor`.
        shape: dimensions without the batch dimension.
        zero_data: send zeros, and empty byte strings.
        random_data: send random values, the same in every run.
        input_data_file: send the contents of a .npy file; this source comes first.
    """

    dtype: Any
    shape: Sequence[int]
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None


@dataclasses.dataclass
class ModelWarmup:
    """Requests that a model gets before it is ready.

    Args:
        name: name of the warm-up, for the log.
        batch_size: number of rows of each request; 0 sends tensors without a batch dimension.
        inputs: data by input.
        count: number of requests.
    """

    name: str
    batch_size: int
    inputs: dict[str, WarmupInput]
    count: int

    def __post_init__(self) -> None:
        check_plain_fields(self)
        check_type(self.inputs, "inputs of a warm-up", dict)
        for data in self.inputs.values():
            check_type(data, "data of an input of a warm-up", WarmupInput)


_SEED = 0
_WIDE_RANGE_BYTES = 2  # larger integers are often indices, so they stay small
_CHARACTERS = string.ascii_lowercase + string.digits


def generate_warmup_data(
    warmup_input: WarmupInput, batch_size: int, rng: np.random.Generator | None = None
) -> NDArray[Any]:
    """Make the array of one input of a warm-up request.

    Args:
        warmup_input: type, shape and source of the data.
        batch_size: number of rows; 0 leaves the batch dimension out.
        rng: source of random data; by default one with the same seed in every call.

    Returns:
        An array as in a request to the model: byte strings are objects.

    Raises:
        PyTritonBadParameterError: if no source is set or the file's shape does not fit.
    """
    datatype = triton_datatype(warmup_input.dtype)
    row_shape = tuple(warmup_input.shape)
    shape = (batch_size, *row_shape) if batch_size else row_shape
    if warmup_input.input_data_file:
        return _file_data(warmup_input.input_data_file, datatype, row_shape, shape)
    if warmup_input.zero_data:
        empty = b"" if datatype is dtypes.BYTES else 0
        return np.full(shape, empty, dtype=datatype.numpy)
    if warmup_input.random_data:
        return _random_data(rng or np.random.default_rng(_SEED), datatype, shape)
    raise PyTritonBadParameterError(
        "One of 'zero_data', 'random_data', or 'input_data_file' must be provided for warmup input."
    )


def generate_warmup_requests(
    model_warmup: Sequence[ModelWarmup],
    input_specs: Sequence[Any] = (),
    outputs_specs: Sequence[Any] = (),  # noqa: ARG001  callers pass the whole signature
) -> list[dict[str, NDArray[Any]]]:
    """Make the inputs of all warm-up requests.

    Args:
        model_warmup: warm-ups in the order in which they run.
        input_specs: inputs of the model; if given, a warm-up may name no others.
        outputs_specs: outputs of the model.

    Returns:
        The arrays by input, for each request.

    Raises:
        PyTritonBadParameterError: if the model has no such input, or an input has no source.
    """
    rng = np.random.default_rng(_SEED)
    requests = []
    for warmup in model_warmup:
        _check_names(warmup.inputs, {spec.name for spec in input_specs})
        for _ in range(warmup.count):
            data = {
                name: generate_warmup_data(warmup_input, warmup.batch_size, rng)
                for name, warmup_input in warmup.inputs.items()
            }
            requests.append(data)
    return requests


def _check_names(inputs: Mapping[str, WarmupInput], names: set[str]) -> None:
    unknown = sorted(inputs.keys() - names) if names else []
    if unknown:
        raise PyTritonBadParameterError(
            f"Expected warm-up data for inputs of the model ({', '.join(sorted(names))}), "
            f"got {', '.join(unknown)}"
        )


def _file_data(
    path: str, datatype: dtypes.DataType, row_shape: tuple[int, ...], shape: tuple[int, ...]
) -> NDArray[Any]:
    data = np.load(path)
    if data.shape not in (shape, row_shape) and data.shape[1:] != row_shape:
        raise PyTritonBadParameterError(
            f"Expected data of shape {shape} or {row_shape} in {path}, got {data.shape}"
        )
    if datatype is dtypes.BYTES:
        elements = dtypes.array_to_bytes_elements(data)
        data = dtypes.bytes_elements_to_array(elements, data.shape)
    return np.resize(data.astype(datatype.numpy, copy=False), shape)


def _random_data(
    rng: np.random.Generator, datatype: dtypes.DataType, shape: tuple[int, ...]
) -> NDArray[Any]:
    kind, dtype = datatype.numpy.kind, datatype.numpy
    if datatype is dtypes.BYTES:
        words = [_random_word(rng) for _ in range(int(np.prod(shape)))]
        return dtypes.bytes_elements_to_array(words, shape)
    if kind == "b":
        return rng.integers(0, 2, size=shape).astype(dtype)
    if kind in "iu":
        limits = np.iinfo(dtype)
        wide = datatype.itemsize <= _WIDE_RANGE_BYTES
        low, high = (limits.min, limits.max + 1) if wide else (0, 100)
        return rng.integers(low, high, size=shape, dtype=dtype)
    return rng.random(size=shape).astype(dtype)


def _random_word(rng: np.random.Generator) -> bytes:
    letters = rng.choice(list(_CHARACTERS), size=int(rng.integers(8, 33)))
    return "".join(letters).encode()


@dataclasses.dataclass
class RateLimiterResource:
    """How much of a resource an instance needs while it executes a batch.

    Args:
        name: name of the resource; models that use the same name share it.
        count: amount that the instance needs.
        is_global: whether all devices share the resource; otherwise each device has its own.
    """

    name: str
    count: int
    is_global: bool = False

    def __post_init__(self) -> None:
        check_plain_fields(self)


@dataclasses.dataclass
class RateLimiter:
    """When the instances of a model may run, if the server's rate limiter is on.

    Args:
        resources: what an instance needs while it executes a batch.
        priority: an instance with priority 2 gets half the turns of one with priority 1.
    """

    resources: Sequence[RateLimiterResource] = ()
    priority: int = 1

    def __post_init__(self) -> None:
        check_plain_fields(self)
        for resource in self.resources:
            check_type(resource, "resource of a rate limiter", RateLimiterResource)


def rate_limiter_message(limiter: RateLimiter) -> dict[str, Any]:
    """Make the ModelRateLimiter message as a dictionary.

    Raises:
        PyTritonBadParameterError: if a count is negative or the priority is not positive.
    """
    for resource in limiter.resources:
        if resource.count < 0:
            raise PyTritonBadParameterError(
                f"Expected a count of at least 0 for the resource {resource.name!r}, "
                f"got {resource.count}."
            )
    if limiter.priority < 1:
        raise PyTritonBadParameterError(
            f"Expected a priority of at least 1 for the rate limiter, got {limiter.priority}."
        )
    resources = [
        {"name": each.name, "count": each.count} | ({"global": True} if each.is_global else {})
        for each in limiter.resources
    ]
    return {"resources": resources, "priority": limiter.priority}


def read_rate_limiter(message: Mapping[str, Any]) -> RateLimiter:
    """Read a ModelRateLimiter message in its JSON form."""
    resources = [
        RateLimiterResource(
            each.get("name", ""), int(each.get("count", 0)), bool(each.get("global", False))
        )
        for each in message.get("resources", ())
    ]
    return RateLimiter(resources, int(message.get("priority", 0)) or 1)
