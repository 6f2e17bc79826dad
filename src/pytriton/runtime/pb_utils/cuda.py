# SPDX-License-Identifier: Apache-2.0
"""Copies GPU memory to the host through the CUDA driver, which every machine with a GPU has."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.runtime.pb_utils.failures import TritonModelException

_LIBRARY = "libcuda.so.1"


def copy_to_host(address: int, size: int, device: int) -> NDArray[np.uint8]:
    """Returns a copy of GPU memory, after waiting for all work that was submitted to the GPU.

    Raises:
        TritonModelException: There is no driver, or it failed.
    """
    driver = _load_driver()
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    _check(driver.cuInit(0), "cuInit")
    _check(driver.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    # The primary context, which libraries such as torch share.
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "context")
    try:
        _check(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        try:
            copy = np.empty(size, np.uint8)
            _check(driver.cuCtxSynchronize(), "cuCtxSynchronize")
            destination, source = ctypes.c_void_p(copy.ctypes.data), ctypes.c_uint64(address)
            _check(driver.cuMemcpyDtoH_v2(destination, source, ctypes.c_size_t(size)), "copying")
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(handle)
    return copy


def _load_driver() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise TritonModelException(
            f"A tensor in GPU memory needs CUDA's driver to be copied, but {error}"
        ) from error


def _check(status: int, step: str) -> None:
    if status:
        raise TritonModelException(f"CUDA's driver failed at {step} with error {status}.")
