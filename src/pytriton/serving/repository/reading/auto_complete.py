# SPDX-License-Identifier: Apache-2.0
"""Applies what a model's `auto_complete_config` returns, and detects whether a model has one."""

from __future__ import annotations

import ast
import threading
from typing import Any

import orjson

from pytriton.base.errors import InternalError
from pytriton.serving.engine.config import config_from_dict, normalise_config

FUNCTION = "auto_complete_config"
_CLASS = "TritonPythonModel"
# In Python 3.11, threads that parse at the same time may get a SystemError (CPython's gh-106905).
_parsing = threading.Lock()


def may_complete(source: str) -> bool:
    """Returns whether a model's file may have the function; if not, no process is started.

    A class with a base class may inherit it. A file that cannot be parsed counts as having it, so
    that Python reports the error.
    """
    if FUNCTION in source:
        return True
    try:
        with _parsing:
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return True
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS]
    return not classes or any(node.bases or node.decorator_list for node in classes)


def completed_config(config: Any, text: str) -> Any:
    """Apply the result of the function to the configuration, with the resulting defaults.

    Args:
        config: The ModelConfig message that the function got.
        text: What it returned, as JSON.

    Returns:
        A new message. As in Triton, only changes of certain fields are applied.

    Raises:
        InvalidArgumentError: The JSON is not a model configuration.
        InternalError: The function chose another scheduler than the configuration.
    """
    proposed = config_from_dict(orjson.loads(text))
    completed = type(config)()
    completed.CopyFrom(config)
    completed.max_batch_size = proposed.max_batch_size
    for field in ("input", "output"):
        completed.ClearField(field)
        getattr(completed, field).extend(getattr(proposed, field))
    chosen, wanted = (each.WhichOneof("scheduling_choice") for each in (config, proposed))
    if chosen is None and wanted is not None:
        getattr(completed, wanted).CopyFrom(getattr(proposed, wanted))
    elif wanted != chosen:
        raise InternalError(
            f"Configuration specified scheduling_choice as '{chosen}', but {FUNCTION} function "
            f"for model '{config.name}' tries to set scheduling_choice as '{wanted}'"
        )
    if proposed.HasField("model_transaction_policy"):
        completed.model_transaction_policy.decoupled = proposed.model_transaction_policy.decoupled
    return normalise_config(completed)
