# SPDX-License-Identifier: Apache-2.0
"""Reads a `TritonModelConfig` from a server's response or from a config.pbtxt file."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.lazy_module import LazyModule
from pytriton.base.openai_routes import (
    ROUTES_PARAMETER,
    TEMPLATE_PARAMETER,
    OpenAI,
    read_openai_parameters,
)
from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    ModelWarmup,
    QueuePolicy,
    RateLimiter,
    TimeoutAction,
    WarmupInput,
    read_rate_limiter,
)
from pytriton.model_config.sequence_batcher import sequence_batcher
from pytriton.model_config.triton_model_config import (
    ResponseCache,
    TensorSpec,
    TritonModelConfig,
)

if TYPE_CHECKING:
    from pytriton.model_config import text_format
else:
    text_format = LazyModule("pytriton.model_config.text_format")


class ModelConfigParser:
    """Reads the server's ModelConfig."""

    @classmethod
    def from_dict(cls, model_config_dict: Mapping[str, Any]) -> TritonModelConfig:
        """Read a ModelConfig in its JSON form.

        Args:
            model_config_dict: values by the message's field names; numbers may be text.

        Returns:
            The configuration; its version is 1, because the message has no version.

        Raises:
            PyTritonModelConfigError: if the name or a property of an input or output is missing
                or unknown.
        """
        message = model_config_dict
        if not message.get("name"):
            raise PyTritonModelConfigError(f"Expected a model name, got {sorted(message)} only.")
        max_batch_size = int(message.get("max_batch_size", 0))
        batching, cache = message.get("dynamic_batching"), message.get("response_cache")
        parameters, sequence = _parameters(message.get("parameters", {})), None
        if (sequences := message.get("sequence_batching")) is not None:
            sequence = sequence_batcher(sequences, parameters)
        openai = _openai(parameters)
        return TritonModelConfig(
            model_name=message["name"],
            max_batch_size=max_batch_size,
            batching=max_batch_size > 0,
            batcher=None if batching is None else _batcher(batching),
            instance_group=_instance_group(message.get("instance_group", ())),
            decoupled=bool(message.get("model_transaction_policy", {}).get("decoupled", False)),
            backend_parameters=parameters,
            inputs=_tensors(message.get("input", ()), "input"),
            outputs=_tensors(message.get("output", ()), "output"),
            response_cache=None if cache is None else ResponseCache(bool(cache.get("enable"))),
            model_warmup=[_warmup(item) for item in message.get("model_warmup", ())] or None,
            sequence=sequence,
            rate_limiter=_rate_limiter(message.get("instance_group", ())),
            openai=openai,
        )

    @classmethod
    def from_file(cls, *, config_path: str | pathlib.Path) -> TritonModelConfig:
        """Read a config.pbtxt file.

        Args:
            config_path: file to read.

        Returns:
            The configuration.

        Raises:
            PyTritonModelConfigError: as `from_dict`, and if the file is not protobuf text.
        """
        text = pathlib.Path(config_path).read_text(encoding="utf-8")
        try:
            message = text_format.loads(text)
        except ValueError as error:
            raise PyTritonModelConfigError(f"Could not read {config_path}: {error}") from error
        return cls.from_dict(message)

    @classmethod
    def rewrite_io_spec(cls, item: Mapping[str, Any], io_type: str, idx: int) -> TensorSpec:
        """Read one input or output.

        Args:
            item: values by the message's field names.
            io_type: "input" or "output", for the error's text.
            idx: position of the tensor, for the error's text.

        Returns:
            The tensor.

        Raises:
            PyTritonModelConfigError: if its name, type or dimensions are missing or unknown.
        """
        name = item.get("name")
        if not name:
            raise PyTritonModelConfigError(f"Name for {io_type} at index {idx} not provided.")
        owner = f"{io_type} with name `{name}`"
        data_type = item.get("data_type")
        if not data_type:
            raise PyTritonModelConfigError(f"Data type for {owner} not defined.")
        dtype = _numpy_type(data_type, owner)
        dims = item.get("dims")
        if not dims:
            raise PyTritonModelConfigError(f"Dimension for {owner} not defined.")
        shape = tuple(int(size) for size in dims)
        return TensorSpec(
            name=name, shape=shape, dtype=dtype, optional=bool(item.get("optional", False))
        )


def _numpy_type(data_type: str, owner: str) -> type[Any]:
    if not data_type.startswith("TYPE_"):
        raise PyTritonModelConfigError(
            f"Invalid data type `{data_type}` for {owner} not defined. "
            "The expected name is TYPE_{type}."
        )
    datatype = dtypes.BY_CONFIG_NAME.get(data_type)
    if datatype is None:
        raise PyTritonModelConfigError(f"Unsupported data type `{data_type}` for {owner}")
    return np.bytes_ if datatype is dtypes.BYTES else datatype.numpy.type


def _tensors(items: Sequence[Mapping[str, Any]], io_type: str) -> list[TensorSpec] | None:
    return [
        ModelConfigParser.rewrite_io_spec(item, io_type, idx) for idx, item in enumerate(items)
    ] or None


def _instance_group(groups: Sequence[Mapping[str, Any]]) -> dict[DeviceKind, int | None]:
    counts: dict[DeviceKind, int | None] = {}
    for group in groups:
        count = group.get("count")
        kind = DeviceKind(group.get("kind", DeviceKind.KIND_AUTO.value))
        counts[kind] = None if count is None else int(count)
    return counts


def _openai(parameters: dict[str, str]) -> OpenAI | None:
    """Takes OpenAI's routes out of the parameters; another server may mean others by the name."""
    try:
        openai = read_openai_parameters(parameters)
    except PyTritonBadParameterError:
        return None
    if openai is not None:
        for key in (ROUTES_PARAMETER, TEMPLATE_PARAMETER):
            parameters.pop(key, None)
    return openai


def _rate_limiter(groups: Sequence[Mapping[str, Any]]) -> RateLimiter | None:
    limiters = (group["rate_limiter"] for group in groups if "rate_limiter" in group)
    first = next(limiters, None)
    return None if first is None else read_rate_limiter(first)


def _parameters(parameters: Mapping[str, Any] | Sequence[str]) -> dict[str, str]:
    if isinstance(parameters, Mapping):
        return {name: value.get("string_value", "") for name, value in parameters.items()}
    return dict.fromkeys(parameters, "")


def _batcher(message: Mapping[str, Any]) -> DynamicBatcher:
    policy = message.get("default_queue_policy")
    policies = message.get("priority_queue_policy", {})
    return DynamicBatcher(
        max_queue_delay_microseconds=int(message.get("max_queue_delay_microseconds", 0)),
        preferred_batch_size=[int(size) for size in message.get("preferred_batch_size", ())]
        or None,
        preserve_ordering=bool(message.get("preserve_ordering", False)),
        priority_levels=int(message.get("priority_levels", 0)),
        default_priority_level=int(message.get("default_priority_level", 0)),
        default_queue_policy=None if policy is None else _queue_policy(policy),
        priority_queue_policy={int(level): _queue_policy(item) for level, item in policies.items()}
        or None,
    )


def _queue_policy(message: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(message.get("timeout_action", TimeoutAction.REJECT.value)),
        default_timeout_microseconds=int(message.get("default_timeout_microseconds", 0)),
        allow_timeout_override=bool(message.get("allow_timeout_override", False)),
        max_queue_size=int(message.get("max_queue_size", 0)),
    )


def _warmup(message: Mapping[str, Any]) -> ModelWarmup:
    inputs = {name: _warmup_input(name, item) for name, item in message.get("inputs", {}).items()}
    return ModelWarmup(
        name=message.get("name", ""),
        batch_size=int(message.get("batch_size", 0)),
        inputs=inputs,
        count=int(message.get("count", 0)),
    )


def _warmup_input(name: str, message: Mapping[str, Any]) -> WarmupInput:
    return WarmupInput(
        dtype=_numpy_type(message.get("data_type", ""), f"warm-up input with name `{name}`"),
        shape=tuple(int(size) for size in message.get("dims", ())),
        zero_data=bool(message.get("zero_data", False)),
        random_data=bool(message.get("random_data", False)),
        input_data_file=message.get("input_data_file"),
    )
