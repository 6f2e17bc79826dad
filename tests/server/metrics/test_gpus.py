# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVML tells of them."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from pytriton.base.nvml import DeviceReading, NvmlReader, find_gpus
from pytriton.serving.server.api.gpu_view import ProcessMemory
from pytriton.serving.server.metrics.machine import gpu_families, gpu_process_families

PROCESS = "nv_instance_process_gpu_memory_bytes"


class NVMLError(Exception):
    pass


class FakeNvml(types.SimpleNamespace):
    """Two devices; the second one tells only its memory."""

    NVMLError = NVMLError
    energy_mj = 5_000_000
    has_driver = True
    uuid_of = ("GPU-aa", b"GPU-bb")

    def nvmlInit(self):  # noqa: N802
        if not self.has_driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.uuid_of)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return self.uuid_of[handle]

    def _supported(self, handle, value):
        if handle:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return self._supported(handle, types.SimpleNamespace(gpu=25, memory=1))

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return types.SimpleNamespace(total=1000 + handle, used=10 + handle, free=990)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        known = types.SimpleNamespace(pid=7, usedGpuMemory=500)
        secret = types.SimpleNamespace(pid=8, usedGpuMemory=None)
        return self._supported(handle, [known, secret])

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._supported(handle, 70_500)

    def nvmlDeviceGetPowerManagementLimit(self, handle):  # noqa: N802
        return self._supported(handle, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self._supported(handle, self.energy_mj)


def test_devices_are_read_in_tritons_units():
    nvml = FakeNvml()
    reader = NvmlReader(nvml)
    nvml.energy_mj += 1500

    assert reader.uuids == {0: "GPU-aa", 1: "GPU-bb"}
    assert reader.read() == [
        DeviceReading("GPU-aa", 0.25, 1000, 10, 70.5, 700.0, 1.5, {7: 500}),
        DeviceReading("GPU-bb", None, 1001, 11),
    ]
    assert reader.free_bytes() == {0: 990, 1: 990}


@pytest.mark.parametrize(
    "visible,uuids",
    [
        ("1", ["GPU-bb"]),
        ("1,0", ["GPU-bb", "GPU-aa"]),
        ("GPU-a", ["GPU-aa"]),
        ("1, 7, 0", ["GPU-bb"]),
        ("1, -1, 0", ["GPU-bb"]),
        ("7, 0", []),
        ("", []),
        ("-1", []),
    ],
)
def test_devices_are_read_that_cuda_sees(visible, uuids):
    reader = NvmlReader(FakeNvml(), visible)

    assert [reading.uuid for reading in reader.read()] == uuids
    assert reader.uuids == dict(enumerate(uuids))


def test_driver_is_found(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())

    assert find_gpus({"CUDA_VISIBLE_DEVICES": "0"}).uuids == {0: "GPU-aa"}
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) is None


@pytest.mark.parametrize("module", [None, FakeNvml(has_driver=False)])
def test_machine_without_gpus_says_so_once_at_verbose_levels(monkeypatch, caplog, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)

    with caplog.at_level(logging.DEBUG, "pytriton"):
        assert find_gpus({}) is None

    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage().startswith("GPUs cannot be read: ")


def test_families_have_tritons_names_and_leave_out_what_is_unknown():
    text = "".join(family.text() for family in gpu_families(NvmlReader(FakeNvml()).read()))

    assert text == (
        "# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)\n"
        "# TYPE nv_gpu_utilization gauge\n"
        'nv_gpu_utilization{gpu_uuid="GPU-aa"} 0.25\n'
        "# HELP nv_gpu_memory_total_bytes GPU total memory, in bytes\n"
        "# TYPE nv_gpu_memory_total_bytes gauge\n"
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-aa"} 1000\n'
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-bb"} 1001\n'
        "# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes\n"
        "# TYPE nv_gpu_memory_used_bytes gauge\n"
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-aa"} 10\n'
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-bb"} 11\n'
        "# HELP nv_gpu_power_usage GPU power usage in watts\n"
        "# TYPE nv_gpu_power_usage gauge\n"
        'nv_gpu_power_usage{gpu_uuid="GPU-aa"} 70.5\n'
        "# HELP nv_gpu_power_limit GPU power management limit in watts\n"
        "# TYPE nv_gpu_power_limit gauge\n"
        'nv_gpu_power_limit{gpu_uuid="GPU-aa"} 700\n'
        "# HELP nv_energy_consumption GPU energy consumption in joules since the Triton Server "
        "started\n"
        "# TYPE nv_energy_consumption counter\n"
        'nv_energy_consumption{gpu_uuid="GPU-aa"} 0\n'
    )


def test_memory_of_processes_is_told_by_model_and_once_by_process():
    many = tuple(f"m_0_{number}" for number in range(10))
    processes = [
        ProcessMemory(7, "GPU-aa", 500, ("m_0_0", "n_0_0"), (("", "m", 1), ("space", "n", 2))),
        ProcessMemory(9, "GPU-aa", 30, many, (("", "m", 1),)),
    ]
    text = "".join(family.text() for family in gpu_process_families(processes))
    lines = [line for line in text.splitlines() if not line.startswith("#")]

    assert lines == [
        'nv_model_gpu_memory_bytes{gpu_uuid="GPU-aa",model="m",version="1"} 530',
        'nv_model_gpu_memory_bytes{gpu_uuid="GPU-aa",model="n",namespace="space",version="2"} 500',
        f'{PROCESS}{{gpu_uuid="GPU-aa",instances="m_0_0,n_0_0",pid="7"}} 500',
        f'{PROCESS}{{gpu_uuid="GPU-aa",instances="{",".join(many[:8])},2 more",pid="9"}} 30',
    ]
