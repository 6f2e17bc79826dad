# SPDX-License-Identifier: Apache-2.0
"""Finds the file of a model in the folder of its version."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytriton.base.errors import UnavailableError

DEFAULT_NAME = "model.onnx"
# Attributes of a device in CUDA's driver: the two numbers of its compute capability.
_MAJOR, _MINOR = 75, 76


def find_model_file(config: Mapping[str, Any], directory: str, compute_capability: str = "") -> str:
    """Returns the path of a model's file; the file inside, if it is a folder with external data.

    Args:
        config: The model's configuration.
        directory: The folder of the version.
        compute_capability: That of the instance's GPU, such as "8.0"; empty for other instances.

    Raises:
        UnavailableError: There is no such file.
    """
    special = (config.get("cc_model_filenames") or {}).get(compute_capability)
    path = Path(directory, special or config.get("default_model_filename") or DEFAULT_NAME)
    if path.is_dir():
        path /= DEFAULT_NAME
    if not path.exists():
        raise UnavailableError(f"unable to find '{path}' for model instance '{config['name']}'")
    return str(path)


def read_compute_capability(device_id: int) -> str:
    """Returns the compute capability of a GPU, from CUDA's driver.

    Raises:
        UnavailableError: There is no driver, or it does not know the device.
    """
    device, numbers = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failure = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), device_id)
        for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
            failure = failure or driver.cuDeviceGetAttribute(
                ctypes.byref(number), attribute, device
            )
    except OSError as error:
        raise UnavailableError(f"unable to read the compute capability: {error}") from error
    if failure:
        raise UnavailableError(
            f"unable to read the compute capability of GPU {device_id}: CUDA error {failure}"
        )
    return ".".join(str(number.value) for number in numbers)
