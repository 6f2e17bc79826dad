# SPDX-License-Identifier: Apache-2.0
"""What a backend may change in the configuration of its model, with Triton's words.

Configurations are the JSON objects that C sees. The server applies the changes, with its own rules.
"""

from __future__ import annotations

from typing import Any

from pytriton.base.dtypes import BY_CONFIG_NAME
from pytriton.base.errors import InternalError, InvalidArgumentError

# The fields that a configuration may lack, with their numbers in Triton's message.
_SCHEDULERS = {"dynamic_batching": 11, "sequence_batching": 13, "ensemble_scheduling": 15}
_OPTIONAL = frozenset(
    {
        *_SCHEDULERS,
        "model_operations",
        "model_repository_agents",
        "model_transaction_policy",
        "model_metrics",
        "response_cache",
        "version_policy",
        "optimization",
    }
)
_TAKEN_OVER = ("max_batch_size", "input", "output", "model_transaction_policy")


def completed_config(config: dict[str, Any], proposed: Any) -> dict[str, Any]:
    """Returns a configuration with those changes of a backend that are taken over.

    Raises:
        InvalidArgumentError: The proposal is not a model configuration.
        InternalError: It has another scheduler.
    """
    if not isinstance(proposed, dict):
        raise InvalidArgumentError("expected a JSON object as model configuration")
    for field in proposed:
        if field not in config and field not in _OPTIONAL:
            raise InvalidArgumentError(f"{field}: Cannot find field.")
    _check_values(proposed)
    completed = dict(config)
    for field in _TAKEN_OVER:
        if field in proposed:
            completed[field] = proposed[field]
    chosen, wanted = (
        [field for field in _SCHEDULERS if field in each] for each in (config, proposed)
    )
    if not chosen:
        completed |= {field: proposed[field] for field in wanted}
    elif wanted != chosen:
        # Triton writes the number of the chosen one in both places.
        number = _SCHEDULERS[chosen[0]]
        raise InternalError(
            f"Cannot update scheduling choice from {number} to {number} when auto-completing."
        )
    return completed


def _check_values(proposed: dict[str, Any]) -> None:
    size = proposed.get("max_batch_size", 0)
    if not isinstance(size, int):
        raise InvalidArgumentError(f'(max_batch_size): invalid value "{size}" for type TYPE_INT32')
    for kind in ("input", "output"):
        for index, tensor in enumerate(proposed.get(kind, ())):
            datatype = tensor.get("data_type", "TYPE_INVALID")
            if datatype not in BY_CONFIG_NAME and datatype != "TYPE_INVALID":
                raise InvalidArgumentError(
                    f'({kind}[{index}].data_type): invalid value "{datatype}" for type'
                    " type.googleapis.com/inference.DataType"
                )
