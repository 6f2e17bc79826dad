# SPDX-License-Identifier: Apache-2.0
"""What a model's parameters say about requests whose instance is lost, or that have no instance."""

from __future__ import annotations

import math
from typing import Any

from pytriton.base.errors import InvalidArgumentError

IDEMPOTENT_PARAMETER = "IDEMPOTENT"
NO_INSTANCE_PARAMETER = "RAY_NO_INSTANCE_TIMEOUT_S"

_ANSWERS = {"true": True, "false": False}


def is_idempotent(config: Any) -> bool:
    """Returns whether requests may be executed again if their instance is lost before it answers.

    Args:
        config: The ModelConfig message.

    Raises:
        InvalidArgumentError: The parameter is wrong, or the model has sequences.
    """
    if IDEMPOTENT_PARAMETER not in config.parameters:
        return False
    text = config.parameters[IDEMPOTENT_PARAMETER].string_value
    answer = _ANSWERS.get(text.strip().lower())
    if answer is None:
        raise InvalidArgumentError(
            f"expected 'true' or 'false' as parameter {IDEMPOTENT_PARAMETER} of model "
            f"'{config.name}', got '{text}'"
        )
    if answer and config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            f"parameter {IDEMPOTENT_PARAMETER} of model '{config.name}' cannot be 'true': its "
            "requests belong to sequences, and the state of a sequence ends with its instance"
        )
    return answer


def no_instance_timeout_s(config: Any) -> float:
    """Returns how long requests wait while a model has no instance; 0: as long as it takes.

    Args:
        config: The ModelConfig message.

    Raises:
        InvalidArgumentError: The parameter is not a number that can be used.
    """
    return seconds_parameter(config, NO_INSTANCE_PARAMETER, 0.0)


def seconds_parameter(config: Any, name: str, default_s: float) -> float:
    """Returns the seconds that a parameter of a model says.

    Raises:
        InvalidArgumentError: It is not a number that can be used.
    """
    if name not in config.parameters:
        return default_s
    text = config.parameters[name].string_value
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < math.inf:
        raise InvalidArgumentError(
            f"expected a number of seconds as parameter {name} of model '{config.name}', "
            f"got '{text}'"
        )
    return seconds
