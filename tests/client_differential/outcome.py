# SPDX-License-Identifier: Apache-2.0
"""What a call gave or raised, as plain JSON that two packages can be compared by.

Of an exception its classes are compared, and of its message what users may rely on:

1. What the server said, without ports, tracebacks, the modules of exceptions and what the
   original's own model file adds.
2. Of the clients' own words, which differ, only those of `MATCHED_WORDS`.

Configurations are compared without the folder in which the original keeps its files.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

PACKAGE = "pytriton."
SHOWN_ELEMENTS = 32
# Settings of a model that the original does not have; models that do not use them are compared.
ADDED_SETTINGS = frozenset({"sequence", "rate_limiter", "openai"})
WORKSPACE = "workspace-path"
NEVER = {"never": "returns"}
# Users' tests and their error handling look for these.
MATCHED_WORDS = (
    "Provide input data",
    "Use either positional either keyword method arguments convention",
    "is not a numpy array",
    "Invalid url",
    "Waiting for server to be ready timed out.",
    "Waiting for model (.*) to be ready timed out.",
    "Timeout while waiting for model",
    "Inference is already in progress",
    "access_token cannot be None or empty",
    "Invalid protocol '(.*)'. Must be 'http' or 'grpc'",
    "Conflicting authentication headers found",
    "max_workers must be greater than 0",
    "max_queue_size must be greater than 0",
    "doesn't support batching",
)
SERVER_WORDS = re.compile(r"(?:Message: |Triton Inference Server side:\n )(.*)", re.DOTALL)
CIRCUMSTANCES = (
    re.compile(r"(?:c_python_backend_utils\.)?TritonModelException: (?:Model execute error: )?"),
    re.compile(r"Traceback \(most recent call last\):\n(?:  .*\n)+"),
    re.compile(r"\n+At:\n(?:  .*\n?)+"),
    re.compile(r"(?<=message: )(?:\w+\.)+(?=\w+Error\b)"),
    re.compile(r"(?<=127\.0\.0\.1):\d+"),
)


def plain(value: Any) -> Any:
    """A result of a client, as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        value = {
            name: item
            for name, item in fields.items()
            if item is not None or name not in ADDED_SETTINGS
        }
    if isinstance(value, np.ndarray):
        return plain_array(value)
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items() if key != WORKSPACE}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain_scalar(value)


def plain_scalar(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def plain_array(array: Any) -> list[Any]:
    """Datatype, shape and elements; only a digest of the elements where there are many."""
    kind, shape = array.dtype.name, list(array.shape)
    if array.size > SHOWN_ELEMENTS and array.dtype != object:
        return [kind, shape, hashlib.sha256(array.tobytes()).hexdigest()]
    return [kind, shape, [plain_element(element) for element in array.ravel().tolist()]]


def plain_element(element: Any) -> Any:
    is_strange = isinstance(element, float) and not math.isfinite(element)
    return repr(element) if is_strange or isinstance(element, bytes) else element


def raised(error: BaseException) -> dict[str, Any]:
    """The classes of an exception that belong to the package, and what can be relied on."""
    classes = [kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(PACKAGE)]
    return {"raised": classes or [type(error).__name__], "says": words_of(error, classes)}


def words_of(error: BaseException, classes: list[str]) -> str | list[str]:
    message = str(error)
    from_server = SERVER_WORDS.search(message)
    if from_server and "PyTritonClientInferenceServerError" in classes:
        return without_circumstances(from_server[1])
    return [words for words in MATCHED_WORDS if re.search(words, message)]


def without_circumstances(text: str) -> str:
    """What the server said, whatever its ports and its files are."""
    for circumstance in CIRCUMSTANCES:
        text = circumstance.sub("", text)
    return text.rstrip("\n")


def agree(real: Any, ours: Any) -> bool:
    """Whether ours does for who knows the original: the same, with at least the same words."""
    if isinstance(real, list) and isinstance(ours, list):
        return len(real) == len(ours) and all(map(agree, real, ours))
    if not (isinstance(real, dict) and isinstance(ours, dict)):
        return bool(real == ours)
    if isinstance(real.get("says"), list) and isinstance(ours.get("says"), list):
        return real["raised"] == ours.get("raised") and set(real["says"]) <= set(ours["says"])
    return real.keys() == ours.keys() and all(agree(real[name], ours[name]) for name in real)


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives or raises."""
    try:
        return plain(call())
    except Exception as error:  # noqa: BLE001  what is raised is the outcome
        return raised(error)


async def attempt_async(awaitable: Awaitable[Any]) -> Any:
    """Like `attempt`, of what is awaited."""
    try:
        return plain(await awaitable)
    except Exception as error:  # noqa: BLE001  what is raised is the outcome
        return raised(error)
