# SPDX-License-Identifier: Apache-2.0
"""The rules that a model configuration must follow, with Triton's error messages.

They are checked on the normalised message, which `serving.engine.config` makes. Each check raises
InvalidArgumentError for the first rule that is broken. `batch_input` and `batch_output` are for
backends of compiled frameworks; a model of the Python backend does not see such tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.sequence.sequence_config import (
    validate_sequence_batching,
    validate_states,
)

_COUNT_TYPES = (model_config_pb2.TYPE_INT32, model_config_pb2.TYPE_FP32)


def check_batch_tensors(config: Any) -> None:
    """Check the computed inputs and outputs of a batch."""
    input_names = {tensor.name for tensor in config.input}
    for batch_input in config.batch_input:
        _check_source(config, "input", batch_input, input_names)
        if batch_input.data_type == model_config_pb2.TYPE_INVALID:
            raise InvalidArgumentError("unexpected batch input data type 'TYPE_INVALID'")
        if batch_input.data_type not in _COUNT_TYPES:
            raise InvalidArgumentError(
                f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}"
            )
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


# Names that begin with two underscores are reserved, and the server adds the first one.
_is_tag_name = re.compile(r"(?!_)[a-zA-Z0-9_]*").fullmatch


def check_metrics(config: Any) -> None:
    """Check `metric_tags` and `model_metrics`; raises InvalidArgumentError for a wrong value."""
    for tag in config.metric_tags:
        if not _is_tag_name(tag):
            raise InvalidArgumentError(
                f"metric tag '{tag}' must have only letters, digits and underscores, and must not "
                f"begin with an underscore for {config.name}"
            )
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise InvalidArgumentError("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgumentError("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise InvalidArgumentError("metric control must specify 'histogram_options'")
        buckets = control.histogram_options.buckets
        if not buckets:
            raise InvalidArgumentError("histogram options must specify non-empty 'buckets'")
        if not are_bounds(buckets):
            raise InvalidArgumentError(
                f"the buckets of '{control.metric_identifier.family}' must be finite numbers in "
                f"ascending order for {config.name}"
            )


def histogram_buckets(config: Any) -> dict[str, tuple[float, ...]]:
    """Returns the bounds that a configuration sets, by metric family; the last one wins."""
    return {
        control.metric_identifier.family: tuple(control.histogram_options.buckets)
        for control in config.model_metrics.metric_control
    }


def are_bounds(bounds: Any) -> bool:
    """Returns whether numbers can be the bounds of a histogram."""
    rises = all(low < high for low, high in pairwise(bounds))
    return rises and all(map(math.isfinite, bounds))


ENSEMBLE = "ensemble"
MAX_INSTANCES = 1024  # of a version on one machine: each is a process
_BACKEND_OF_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
_FRAMEWORK_BACKENDS = frozenset(_BACKEND_OF_PLATFORM.values())


def validate_config(config: Any, gpu_ids: Sequence[int] = ()) -> None:
    """Check a normalised configuration."""
    validate_contents(config)
    validate_instance_groups(config, gpu_ids)


def validate_contents(config: Any) -> None:
    """Check a normalised configuration, except for the devices of its instances."""
    validate_model(config)
    validate_tensors(config)
    if config.HasField("sequence_batching"):
        validate_states(config)


def validate_model(config: Any) -> None:
    """Check what must be correct before loading, which may complete other fields."""
    if not config.name:
        raise InvalidArgumentError("model configuration must specify 'name'")
    _check_platform(config)
    if config.max_batch_size < 0:
        raise InvalidArgumentError(f"'max_batch_size' must be non-negative value for {config.name}")
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        validate_sequence_batching(config)
    if config.response_cache.enable:
        _check_response_cache(config)
    check_metrics(config)


def validate_tensors(config: Any) -> None:
    """Check inputs and outputs, and what is computed from them."""
    for kind, tensors in (("input", config.input), ("output", config.output)):
        _check_unique_names(config, kind, tensors)
        for tensor in tensors:
            _check_tensor(config, kind, tensor)
    check_batch_tensors(config)


def validate_instance_groups(config: Any, gpu_ids: Sequence[int] = ()) -> None:
    """Check the number of instances on this machine, and the devices they are to be placed on."""
    for group in config.instance_group:
        _check_instance_group(config, group, gpu_ids)
    count = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    if count > MAX_INSTANCES:
        raise InvalidArgumentError(
            f"expected at most {MAX_INSTANCES} instances of model '{config.name}', got {count} in "
            "its instance groups"
        )


def _check_platform(config: Any) -> None:
    name, platform, backend = config.name, config.platform, config.backend
    has_steps = config.HasField("ensemble_scheduling")
    if platform == ENSEMBLE:
        if backend:
            raise InvalidArgumentError(
                f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
            )
        if not has_steps:
            raise InvalidArgumentError(
                f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
            )
        return
    if not backend:
        if platform not in _BACKEND_OF_PLATFORM:
            raise InvalidArgumentError(f"unexpected platform type '{platform}' for {name}")
    elif backend in _FRAMEWORK_BACKENDS and _BACKEND_OF_PLATFORM.get(platform) != backend:
        raise InvalidArgumentError(
            f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"
        )
    if has_steps:
        raise InvalidArgumentError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        )


def _check_dynamic_batching(config: Any) -> None:
    name, batching = config.name, config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise InvalidArgumentError(
                f"dynamic batching preferred size must be positive for {name}"
            )
        if size > config.max_batch_size:
            raise InvalidArgumentError(
                f"dynamic batching preferred size must be <= max batch size for {name}"
            )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise InvalidArgumentError(
                f"default priority level must be in range [1, {levels}] for {name}"
            )
        if not all(1 <= level <= levels for level in batching.priority_queue_policy):
            raise InvalidArgumentError(
                f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            )
    for policy in _queue_policies(batching):
        if policy.timeout_action not in model_config_pb2.ModelQueuePolicy.TimeoutAction.values():
            raise InvalidArgumentError(
                f"queue policy has unknown timeout action {policy.timeout_action} for {name}"
            )
    if batching.preserve_ordering:
        _check_preserved_ordering(config)


def _queue_policies(batching: Any) -> list[Any]:
    return [batching.default_queue_policy, *batching.priority_queue_policy.values()]


def _check_preserved_ordering(config: Any) -> None:
    batching = config.dynamic_batching
    if batching.priority_levels > 1:
        raise InvalidArgumentError(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}"
        )
    delay = model_config_pb2.ModelQueuePolicy.DELAY
    for policy in _queue_policies(batching):
        # Without a timeout no request is ever delayed, so Triton accepts the action.
        if policy.timeout_action == delay and policy.default_timeout_microseconds:
            raise InvalidArgumentError(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' "
                f"is true for {config.name}"
            )


def _check_response_cache(config: Any) -> None:
    obstacle = None
    if config.HasField("sequence_batching"):
        obstacle = "sequence batching scheduler"
    elif config.model_transaction_policy.decoupled:
        obstacle = "'decoupled' transaction policy"
    if obstacle is not None:
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {config.name} with {obstacle}. "
            "Please disable the response cache."
        )


def _check_unique_names(config: Any, kind: str, tensors: Iterable[Any]) -> None:
    seen = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise InvalidArgumentError(
                f"model {kind} '{tensor.name}' is specified more than once for {config.name}"
            )
        seen.add(tensor.name)


def _check_tensor(config: Any, kind: str, tensor: Any) -> None:
    def refuse(problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{problem} for {config.name}")

    if not tensor.name:
        raise refuse(f"model {kind} must specify 'name'")
    label = f"model {kind} '{tensor.name}'"
    if tensor.data_type not in BY_NUMBER:
        raise refuse(f"{label} must specify 'data_type'")
    if not tensor.dims:
        raise refuse(f"{label} must specify 'dims'")
    if not _are_dimensions(tensor.dims):
        raise refuse(
            f"{label} dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
        )
    if tensor.HasField("reshape"):
        problem = _reshape_problem(tensor, batches=config.max_batch_size > 0)
        if problem is not None:
            raise refuse(f"{label} {problem}")
    problem = _layout_problem(kind, tensor)
    if problem is not None:
        raise refuse(problem)


def _layout_problem(kind: str, tensor: Any) -> str | None:
    if kind == "input" and tensor.format and len(tensor.dims) != 3:
        return "model input NHWC/NCHW require 3 dims"
    if tensor.is_shape_tensor:
        return "shape tensors are only supported for TensorRT platform"
    if tensor.is_non_linear_format_io:
        return "Non-linear IO format is only supported for the TensorRT platform"
    return None


def _are_dimensions(dims: Iterable[int]) -> bool:
    return all(dim >= 1 or dim == -1 for dim in dims)


def _reshape_problem(tensor: Any, *, batches: bool) -> str | None:
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    if not shape and not batches:
        return (
            "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        )
    if not _are_dimensions(shape):
        return (
            "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
        )
    if dims.count(-1) != shape.count(-1) and -1 in dims and -1 in shape:
        return "has different number of variable-size dimensions for dims and reshape"
    if _segment_sizes(dims) != _segment_sizes(shape):
        return "has different size for dims and reshape"
    return None


def _segment_sizes(dims: list[int]) -> list[int]:
    """Returns the element count of each run of fixed dimensions between the variable ones."""
    ends = [index for index, dim in enumerate(dims) if dim == -1]
    starts = [0, *(end + 1 for end in ends)]
    return [
        math.prod(dims[start:end]) for start, end in zip(starts, [*ends, len(dims)], strict=True)
    ]


def _check_instance_group(config: Any, group: Any, gpu_ids: Sequence[int]) -> None:
    label = f"instance group {group.name} of model {config.name}"
    kinds = model_config_pb2.ModelInstanceGroup
    if group.kind not in kinds.Kind.values():
        raise InvalidArgumentError(f"{label} has unknown kind {group.kind}")
    if group.kind == kinds.KIND_GPU:
        if not gpu_ids:
            raise InvalidArgumentError(f"{label} has kind KIND_GPU but no GPUs are available")
        for gpu in group.gpus:
            if gpu not in gpu_ids:
                raise InvalidArgumentError(
                    f"{label} specifies invalid or unsupported gpu id {gpu}. "
                    f"The available GPUs are: {', '.join(map(str, gpu_ids))}"
                )
    elif group.gpus:
        kind = kinds.Kind.Name(group.kind)
        raise InvalidArgumentError(f"{label} has kind {kind} but specifies one or more GPUs")
    if group.profile:
        raise InvalidArgumentError(
            f"{label} and platform specifies profile field which is only supported for "
            "TensorRT models"
        )
