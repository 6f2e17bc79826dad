# SPDX-License-Identifier: Apache-2.0
"""Says where the instances of a model run: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from typing import Any, Literal

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.engine.config_rules import ENSEMBLE

Executor = Literal["local", "ray"]
PARAMETER = "EXECUTOR"  # of a model, in place of the server's setting
LOCAL, RAY = "local", "ray"


def runs_on_ray(config: Any, default: Executor) -> bool:
    """Returns whether a model's instances run on Ray; an ensemble has none.

    Raises:
        InvalidArgumentError: The model's parameter names something else.
    """
    if config.platform == ENSEMBLE:
        return False
    if PARAMETER not in config.parameters:
        return default == RAY
    value = config.parameters[PARAMETER].string_value
    if value not in (LOCAL, RAY):
        raise InvalidArgumentError(
            f"expected '{LOCAL}' or '{RAY}' as parameter {PARAMETER} of model '{config.name}', "
            f"got '{value}'"
        )
    return bool(value == RAY)
