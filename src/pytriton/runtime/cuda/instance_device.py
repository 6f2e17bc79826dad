# SPDX-License-Identifier: Apache-2.0
"""The GPU that an instance was given: current on its threads before its model runs.

Libraries of CUDA use device 0 on a thread where none is current. So nothing is done for instances
on device 0, and a model that does not use CUDA costs no context there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import usable_driver
from pytriton.runtime.cuda.driver import CudaError

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

GPU = "GPU"
ANY_DEVICE = -1


def device_of_instance(arguments: Mapping[str, str]) -> int:
    """Returns the GPU of an instance with these arguments of `initialize`; -1 if it has none."""
    if arguments.get("model_instance_kind") != GPU:
        return ANY_DEVICE
    number = arguments.get("model_instance_device_id", "0")
    return int(number) if number.isdecimal() else ANY_DEVICE


def gpu_in_use(device: int) -> bytes:
    """Returns what the GPU that this process uses is known by in others; empty if that is open.

    Loads nothing and makes nothing active. `device` is that of the instance, if it has one.
    """
    driver = cuda_driver.find_loaded()
    try:
        active = [] if driver is None else driver.active_devices()
        if driver is None or (device not in active and len(active) != 1):
            return b""
        return driver.uuid_of(device if device in active else active[0])
    except CudaError:  # it is loaded, but nobody has initialised it
        return b""


def make_current(device: int) -> None:
    """Make a GPU current on this thread. If the driver cannot, that is logged, and no error."""
    if device <= 0:
        return
    try:
        usable_driver().make_current(device)
    except (CudaError, ServerError) as error:
        logger.warning("GPU %d cannot be made current for the model: %s", device, error)
