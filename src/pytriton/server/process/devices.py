# SPDX-License-Identifier: Apache-2.0
"""The GPUs that instances can be placed on, found without a driver's library."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping

_DEVICE = re.compile(r"nvidia\d+")


def visible_gpu_ids(
    environment: Mapping[str, str] = os.environ, devices: pathlib.Path = pathlib.Path("/dev")
) -> tuple[int, ...]:
    """The numbers of the GPUs that processes of this server see."""
    if environment.get("TRITON_SERVER_CPU_ONLY"):
        return ()
    found = sum(1 for device in devices.glob("nvidia*") if _DEVICE.fullmatch(device.name))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
        found = min(found, len(named))
    return tuple(range(found))
