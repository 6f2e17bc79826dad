# SPDX-License-Identifier: Apache-2.0
"""Shared by the backends of several frameworks: packages, files, parameters, rows of features.

Configurations are dictionaries, as `ModelConfig.as_dict()` of the Python backend has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import BF16, BY_NUMBER, BYTES
from pytriton.base.errors import InvalidArgumentError, UnavailableError


def import_wheel(module: str, extra: str, backend: str) -> ModuleType:
    """Import a module of a package that may be missing.

    Args:
        module: The module.
        extra: The extra of this package that installs it.
        backend: The backend that needs it.

    Raises:
        UnavailableError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise  # the package is there, but something that it needs is not
        raise UnavailableError(
            f"backend '{backend}' needs {package}: pip install 'pytriton[{extra}]'"
        ) from error


_GIT_LFS = b"version https://git-lfs."


def explain_file(path: str | Path) -> str:
    """Returns a sentence to append to the error of a library, or nothing."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(_GIT_LFS))
    except OSError:
        return ""
    if start == _GIT_LFS:
        return " (the file is a pointer of Git LFS: fetch the model itself with 'git lfs pull')"
    return ""


SETTING = "default-max-batch-size"
_DEFAULT = 4


def default_max_batch_size(backend_config: Mapping[str, str]) -> int:
    """Returns what the server's settings for a backend say; a negative number counts as 0.

    Raises:
        InvalidArgumentError: The setting is not a number.
    """
    value = backend_config.get(SETTING, str(_DEFAULT))
    try:
        return max(int(value), 0)
    except ValueError as error:
        raise InvalidArgumentError(f"expected a number as {SETTING}, got '{value}'") from error


# The datatypes of configurations by numpy's names, which are also those of most frameworks.
CONFIG_TYPES = {
    "bfloat16" if each is BF16 else each.numpy.name: each.config_name
    for each in BY_NUMBER.values()
    if each is not BYTES
}
INPUT, OUTPUT = "input__0", "output__0"
# Rows are cheap for such models, and a client often sends many at once.
DEFAULT_MAX_BATCH_SIZE = 32768
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def read_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values of the configuration's `parameters`."""
    parameters: Mapping[str, Any] = config.get("parameters") or {}
    return {name: str(value.get("string_value", "")) for name, value in parameters.items()}


def read_boolean(parameters: Mapping[str, str], name: str) -> bool | None:
    """Returns a parameter that is true or false; None if it is not there.

    Raises:
        InvalidArgumentError: It is something else.
    """
    text = parameters.get(name)
    if text is None:
        return None
    if text.lower() not in _BOOLEANS:
        raise InvalidArgumentError(
            f"expected 'true' or 'false' as parameter '{name}', got '{text}'"
        )
    return _BOOLEANS[text.lower()]


def find_file(config: Mapping[str, Any], directory: str, names: Iterable[str]) -> Path:
    """Returns the model's file: the configured one, or the first of these names that is there.

    Raises:
        UnavailableError: There is no such file.
    """
    configured = config.get("default_model_filename")
    wanted = [configured] if configured else list(names)
    for name in wanted:
        path = Path(directory, name)
        if path.exists():
            return path
    expected = " or ".join(f"'{name}'" for name in wanted)
    raise UnavailableError(
        f"unable to find {expected} in '{directory}' for model '{config.get('name', '')}'"
    )


def complete_config(
    config: dict[str, Any], features: int, input_type: str, output_type: str, width: list[int]
) -> None:
    """Complete a configuration: its input, its output, and batches of many rows.

    Args:
        config: The configuration, which is changed.
        features: The number of columns; -1 if the model takes any.
        input_type: The datatype of the input if none is configured.
        output_type: The same for the output.
        width: The dimensions of the output without the batch dimension.
    """
    is_empty = not config.get("input") and not config.get("output")
    if is_empty and config.get("max_batch_size", 0) <= 0:
        config["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
        if "sequence_batching" not in config:
            config.setdefault("dynamic_batching", {})
    is_batching = config.get("max_batch_size", 0) > 0
    rows = [] if is_batching else [-1]
    if not config.get("input"):
        config["input"] = [
            {"name": INPUT, "data_type": input_type, "dims": [*rows, features]},
        ]
    if not config.get("output"):
        config["output"] = [
            tensor_entry(OUTPUT, output_type, [*rows, *width], is_batching=is_batching)
        ]


def tensor_entry(
    name: str, data_type: str, dims: Sequence[int], *, is_batching: bool
) -> dict[str, Any]:
    """Returns a tensor of a configuration, which has at least one dimension.

    Args:
        name: Its name.
        data_type: Its datatype.
        dims: Its dimensions without the batch dimension; the model's tensor may have none.
        is_batching: Whether there is a batch dimension.
    """
    entry: dict[str, Any] = {"name": name, "data_type": data_type, "dims": list(dims) or [1]}
    if is_batching and not dims:
        entry["reshape"] = {"shape": []}
    return entry


def refuse_optional_inputs(config: Mapping[str, Any]) -> None:
    """Refuse a configuration whose requests may lack an input that the model needs.

    Raises:
        InvalidArgumentError: An input is optional.
    """
    for tensor in config.get("input") or ():
        if tensor.get("optional"):
            raise InvalidArgumentError(
                f"'optional' is set to true for input '{tensor['name']}' while the backend model"
                " doesn't support optional input"
            )


def only_tensors(config: Mapping[str, Any], features: int) -> tuple[str, Mapping[str, Any]]:
    """Returns the name of the only input, and the only output.

    Raises:
        InvalidArgumentError: There are more or none, or the input is optional or has another number
            of columns than the model.
    """
    refuse_optional_inputs(config)
    name = config.get("name", "")
    for kind in ("input", "output"):
        count = len(config.get(kind) or ())
        if count != 1:
            raise InvalidArgumentError(
                f"unable to load model '{name}', configuration expects {count} {kind}s, model"
                " provides 1"
            )
    (tensor,), (output,) = config["input"], config["output"]
    dims = [int(each) for each in tensor["dims"]]
    if dims[-1] not in (-1, features) and features != -1:
        raise InvalidArgumentError(
            f"model '{name}', tensor '{tensor['name']}': the model expects {features} columns, but"
            f" the model configuration specifies shape {dims}"
        )
    return tensor["name"], output


def is_utf8(element: bytes) -> bool:
    """Returns whether a string can be passed to a framework whose strings are Unicode."""
    try:
        element.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Returns rows of columns, also of a single row of a model that does not batch."""
    return np.atleast_2d(array)
