# SPDX-License-Identifier: Apache-2.0
"""Stands for the module pynvml: one device, whose memory a file tells, so that a test can set it.

The file, which the variable FAKE_NVML names, is JSON: `total`, `free`, and `processes`, the bytes
of each process by its number.
"""

from __future__ import annotations

import json
import os
import types
from pathlib import Path


class NVMLError(Exception):
    pass


def nvmlInit():  # noqa: N802
    if not Path(os.environ["FAKE_NVML"]).exists():
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount():  # noqa: N802
    return 1


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return index


def nvmlDeviceGetUUID(handle):  # noqa: N802
    return f"GPU-fake-{handle}"


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    facts = _facts()
    used = facts["total"] - facts["free"]
    return types.SimpleNamespace(total=facts["total"], free=facts["free"], used=used)


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802
    return [
        types.SimpleNamespace(pid=int(pid), usedGpuMemory=size)
        for pid, size in _facts().get("processes", {}).items()
    ]


def _unsupported(handle):
    raise NVMLError("Not Supported")


nvmlDeviceGetUtilizationRates = _unsupported  # noqa: N816
nvmlDeviceGetPowerUsage = _unsupported  # noqa: N816
nvmlDeviceGetPowerManagementLimit = _unsupported  # noqa: N816
nvmlDeviceGetTotalEnergyConsumption = _unsupported  # noqa: N816


def _facts():
    return json.loads(Path(os.environ["FAKE_NVML"]).read_text())
