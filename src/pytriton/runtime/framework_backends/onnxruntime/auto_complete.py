# SPDX-License-Identifier: Apache-2.0
"""Completes a model's configuration from what the model declares. Pure.

Configurations are dictionaries, as `ModelConfig.as_dict()` of the Python backend has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.onnxruntime.config_check import added_input_names
from pytriton.runtime.framework_backends.onnxruntime.signature import OnnxSignature, TensorInfo
from pytriton.runtime.framework_backends.shared import SETTING


def is_complete(config: Mapping[str, Any]) -> bool:
    """Returns whether nothing is to be completed: the configuration has inputs and outputs."""
    return bool((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete(
    config: dict[str, Any], signature: OnnxSignature, default_batch_size: int
) -> list[str]:
    """Complete `config`, as Triton does for this backend.

    Lists of inputs and outputs are filled only if they are empty; they are never merged.

    Args:
        config: The configuration, which is changed.
        signature: The tensors of the model.
        default_batch_size: The maximum batch size if the model can batch and the configuration does
            not say one.

    Returns:
        What a user should be warned of.

    Raises:
        InvalidArgumentError: The configuration demands batching, which the model does not support.
    """
    warnings = _complete_batching(config, signature, default_batch_size)
    batches = config.get("max_batch_size", 0) > 0
    if not config.get("input") and not config.get("batch_input"):
        # Triton lists the inputs that the server adds, too, and then refuses the configuration.
        added = added_input_names(config)
        infos = [info for name, info in signature.inputs.items() if name not in added]
        config["input"] = _entries(infos, batches=batches)
    if not config.get("output"):
        config["output"] = _entries(signature.outputs.values(), batches=batches)
    return warnings


def _complete_batching(
    config: dict[str, Any], signature: OnnxSignature, default_batch_size: int
) -> list[str]:
    name = config.get("name", "")
    configured = config.get("max_batch_size", 0)
    warnings = []
    if not _can_batch(signature):
        if configured > 0:
            raise InvalidArgumentError(
                f"autofill failed for model '{name}': model does not support batching while"
                " non-zero max_batch_size is specified"
            )
    elif configured <= 0:
        config["max_batch_size"] = default_batch_size
        if default_batch_size:
            warnings.append(
                f"model '{name}' has no max_batch_size and can batch: it is set to"
                f" {default_batch_size}. Set it in the configuration, or the default with"
                f" --backend-config=onnxruntime,{SETTING}=<size>"
            )
    has_scheduler = "sequence_batching" in config or "dynamic_batching" in config
    if config.get("max_batch_size", 0) > 1 and not has_scheduler:
        config["dynamic_batching"] = {}
    return warnings


def _can_batch(signature: OnnxSignature) -> bool:
    infos = (*signature.inputs.values(), *signature.outputs.values())
    return all(info.shape[:1] == (-1,) for info in infos)


def _entries(infos: Iterable[TensorInfo], *, batches: bool) -> list[dict[str, Any]]:
    entries = []
    for info in infos:
        dims = list(info.shape[1:] if batches else info.shape)
        entry: dict[str, Any] = {"name": info.name, "data_type": info.data_type}
        # A tensor of a configuration has at least one dimension.
        entry["dims"] = dims or [1]
        if not dims and batches:
            entry["reshape"] = {"shape": []}
        entries.append(entry)
    return entries
