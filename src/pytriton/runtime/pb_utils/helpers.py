# SPDX-License-Identifier: Apache-2.0
"""Functions for models: find tensors and settings, convert datatypes, control other models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.runtime.pb_utils.arguments import boolean, text
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.runtime import call_service, require_runtime
from pytriton.runtime.pb_utils.tensor import Tensor

TRITON_STRING_TO_NUMPY: dict[str, type] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """Returns the request's input of that name; None if the client did not send it."""
    # Models call this for each input of each request; with the methods it takes twice as long.
    for tensor in request._inputs:  # noqa: SLF001  see above
        if tensor._name == name:  # noqa: SLF001  see above
            return tensor
    return None


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    """Returns the response's output of that name; None if there is none."""
    for tensor in response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Returns an input's entry in a model's configuration; None if there is none."""
    return _config_by_name(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Returns an output's entry in a model's configuration; None if there is none."""
    return _config_by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Returns whether a model is decoupled: it may send any number of responses to a request."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> type:
    """Returns the numpy type of a datatype in a configuration, for example of `TYPE_FP32`.

    Raises:
        KeyError: Numpy has no such type.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> type | None:
    """Returns the numpy type of a datatype's number; None if numpy has none."""
    row = dtypes.BY_NUMBER.get(data_type)
    return None if row is None or row is dtypes.BF16 else row.numpy.type


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Returns the number of the datatype for a numpy type; None if there is none."""
    dtype = np.dtype(data_type)
    row = None if dtype.kind == "U" else dtypes.from_numpy(dtype)
    return None if row is None else row.number


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> bytes | tuple[()] | None:
    """Serialize an object or bytes array; each element follows its length.

    Returns:
        The bytes; an empty tuple for an array without elements; None for other types.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return dtypes.encode_bytes(
        [
            element if isinstance(element, bytes) else str(element).encode()
            for element in input_tensor.ravel().tolist()
        ]
    )


def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[np.object_]:
    """Returns the elements of an array that `serialize_byte_tensor` serialized.

    Raises:
        ValueError: The bytes end within an element.
    """
    elements = dtypes.decode_bytes(encoded_tensor)
    return dtypes.bytes_elements_to_array(elements, (len(elements),))


def _config_by_name(model_config: dict[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    entries: list[dict[str, Any]] = model_config.get(kind, [])
    return next((entry for entry in entries if entry["name"] == name), None)


_PURPOSE = "control models"
_FILE = "file:"


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load or reload a model; returns when it can be called.

    Args:
        model_name: The name of a model in a repository, or a new name, with `files`.
        config: A configuration as JSON text, instead of that in the repository.
        files: File contents by path (like `file:1/model.py`), instead of the repository's files.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: `files` is not a dict of such paths, or loading failed.
    """
    name = text(model_name, "model_name")
    call_service(
        _PURPOSE,
        "Failed to load model",
        "load_model",
        name=name,
        config=text(config, "config"),
        files=_checked_files(files, name),
    )


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; requests that it has accepted are still answered.

    Args:
        model_name: The name of the model.
        unload_dependents: Also unload models that it calls, as ensembles do.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: The server does not allow models to be unloaded.
    """
    call_service(
        _PURPOSE,
        "Failed to unload model",
        "unload_model",
        name=text(model_name, "model_name"),
        unload_dependents=boolean(unload_dependents, "unload_dependents"),
    )


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Returns whether a model can be called.

    Args:
        model_name: The name of the model.
        model_version: The version; empty for the version that the server would choose.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: The version is not a number.
    """
    answer: bool = call_service(
        _PURPOSE,
        "Failed to check model readiness",
        "is_model_ready",
        name=text(model_name, "model_name"),
        version=text(model_version, "model_version"),
    )
    return answer


def get_model_dir() -> str:
    """Returns the directory of the model's version, where its files are.

    Raises:
        TritonModelException: No server runs the model.
    """
    return require_runtime("know the model's directory").model_directory


def get_backend_config() -> dict[str, str]:
    """Returns the server's settings of the model's backend: those of `--backend-config`.

    They are the settings of all backends and, instead of those of the same name, those of this one.
    `default-max-batch-size` is always there. This function is an extension of ours.

    Raises:
        TritonModelException: No server runs the model.
    """
    return dict(require_runtime("know the backend's settings").backend_config)


def _checked_files(files: Any, model_name: str) -> dict[str, bytes]:
    if files is None:
        return {}
    if not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and"
            f" file contents, got {type(files)}"
        )
    checked = {}
    for key, content in files.items():
        path = text(key, "a key of files")
        if not path.startswith(_FILE):
            raise TritonModelException(
                f"failed to load model '{model_name}', file paths should begin with '{_FILE}',"
                f" got '{path}'"
            )
        if not isinstance(content, bytes):
            raise TypeError(f"the content of '{path}' must be bytes, got {type(content)}")
        checked[path.removeprefix(_FILE)] = content
    return checked
