# SPDX-License-Identifier: Apache-2.0
"""Makes a model's configuration for the server: the fields of Triton's ModelConfig message.

The keys are those of the message, so that protobuf's JSON parser can read the result. This module
imports protobuf only to write files, to save memory in the process that binds models.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.base.openai_routes import openai_parameters
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import (
    DynamicBatcher,
    ModelWarmup,
    QueuePolicy,
    WarmupInput,
    rate_limiter_message,
)
from pytriton.model_config.sequence_batcher import sequence_message, sequence_parameters
from pytriton.model_config.tensor import triton_datatype
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

if TYPE_CHECKING:
    from pytriton.model_config import text_format
else:
    text_format = LazyModule("pytriton.model_config.text_format")


class ModelConfigGenerator:
    """Turns a `TritonModelConfig` into the server's ModelConfig.

    Args:
        config: configuration of the model.
    """

    def __init__(self, config: TritonModelConfig) -> None:
        self._config = config

    def get_config(self) -> dict[str, Any]:
        """Make the ModelConfig as a dictionary, with the field names of the message.

        Returns:
            The input of protobuf's JSON parser; fields with their default value are left out.

        Raises:
            PyTritonBadParameterError: if a value contradicts another or is out of range.
        """
        config = self._config
        message: dict[str, Any] = {"name": config.model_name, "backend": config.backend}
        message["max_batch_size"] = self._max_batch_size()
        parameters = self._parameters()
        if config.sequence is not None:
            message["sequence_batching"] = sequence_message(config.sequence)
        elif config.batching and config.batcher is not None:
            message["dynamic_batching"] = _dynamic_batching(config.batcher)
        if config.inputs:
            message["input"] = [_tensor(spec) for spec in config.inputs]
        if config.outputs:
            message["output"] = [_tensor(spec) for spec in self._outputs(config.outputs)]
        if config.instance_group:
            message["instance_group"] = self._instance_groups()
        if config.decoupled:
            message["model_transaction_policy"] = {"decoupled": True}
        if parameters:
            message["parameters"] = {
                name: {"string_value": value} for name, value in parameters.items()
            }
        if config.response_cache is not None and config.response_cache.enable:
            message["response_cache"] = {"enable": True}
        if config.model_warmup:
            message["model_warmup"] = [_warmup(warmup) for warmup in config.model_warmup]
        return message

    def to_file(self, config_path: str | pathlib.Path) -> str:
        """Write the configuration as a config.pbtxt file.

        Args:
            config_path: file to write; its folder is made if it is missing.

        Returns:
            The text that was written.

        Raises:
            PyTritonBadParameterError: as `get_config`, and if a value does not fit its field.
        """
        try:
            text = text_format.dumps(self.get_config())
        except ValueError as error:
            raise PyTritonBadParameterError(f"Could not write {config_path}: {error}") from error
        path = pathlib.Path(config_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return text

    def _max_batch_size(self) -> int:
        if not self._config.batching:
            return 0
        if self._config.max_batch_size < 1:
            raise PyTritonBadParameterError("The `max_batch_size` must be greater or equal to 1.")
        return self._config.max_batch_size

    def _parameters(self) -> dict[str, str]:
        config = self._config
        parameters = dict(config.backend_parameters)
        if config.sequence is not None:
            parameters |= sequence_parameters(config.sequence)
        if config.openai is not None:
            parameters |= openai_parameters(config.openai)
        return parameters

    def _instance_groups(self) -> list[dict[str, Any]]:
        limiter = self._config.rate_limiter
        common = {} if limiter is None else {"rate_limiter": rate_limiter_message(limiter)}
        return [
            {"kind": kind.value} | ({} if count is None else {"count": count}) | common
            for kind, count in self._config.instance_group.items()
        ]

    @staticmethod
    def _outputs(outputs: Any) -> list[TensorSpec]:
        optional = [spec.name for spec in outputs if spec.optional]
        if optional:
            raise PyTritonBadParameterError(
                "Optional flag for outputs is not supported. "
                f"Outputs marked as optional: {', '.join(optional)}."
            )
        return list(outputs)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    message: dict[str, Any] = {
        "name": spec.name,
        "data_type": triton_datatype(spec.dtype).config_name,
        "dims": list(spec.shape),
    }
    if spec.optional:
        message["optional"] = True
    return message


def _dynamic_batching(batcher: DynamicBatcher) -> dict[str, Any]:
    levels = batcher.priority_levels
    if batcher.default_priority_level and not 1 <= batcher.default_priority_level <= levels:
        raise PyTritonBadParameterError(
            f"The `default_priority_level` must be between 1 and {levels}."
        )
    message: dict[str, Any] = {
        "max_queue_delay_microseconds": batcher.max_queue_delay_microseconds,
        "preferred_batch_size": list(batcher.preferred_batch_size or ()),
        "preserve_ordering": batcher.preserve_ordering,
        "priority_levels": levels,
        "default_priority_level": batcher.default_priority_level,
    }
    if batcher.default_queue_policy is not None:
        message["default_queue_policy"] = _queue_policy(batcher.default_queue_policy)
    if batcher.priority_queue_policy:
        message["priority_queue_policy"] = _priority_queue_policy(
            batcher.priority_queue_policy, levels
        )
    return {name: value for name, value in message.items() if value}


def _priority_queue_policy(policies: dict[int, QueuePolicy], levels: int) -> dict[str, Any]:
    if not levels:
        raise PyTritonBadParameterError(
            "Provide the `priority_levels` if you want to define `priority_queue_policy` "
            "for Dynamic Batching."
        )
    for level in policies:
        if not 1 <= level <= levels:
            raise PyTritonBadParameterError(
                f"Invalid `priority`={level} provided. The value must be between 1 and {levels}."
            )
    # Keys of JSON objects are text, also if the keys of the map are numbers.
    return {str(level): _queue_policy(policy) for level, policy in policies.items()}


def _queue_policy(policy: QueuePolicy) -> dict[str, Any]:
    return {
        "timeout_action": policy.timeout_action.value,
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_size": policy.max_queue_size,
    }


def _warmup(warmup: ModelWarmup) -> dict[str, Any]:
    inputs = {name: _warmup_input(data) for name, data in warmup.inputs.items()}
    return {
        "name": warmup.name,
        "batch_size": warmup.batch_size,
        "inputs": inputs,
        "count": warmup.count,
    }


def _warmup_input(data: WarmupInput) -> dict[str, Any]:
    message: dict[str, Any] = {
        "data_type": triton_datatype(data.dtype).config_name,
        "dims": list(data.shape),
    }
    # The message has one source only; the order is that of generate_warmup_data.
    if data.input_data_file:
        message["input_data_file"] = data.input_data_file
    elif data.zero_data:
        message["zero_data"] = True
    elif data.random_data:
        message["random_data"] = True
    return message
