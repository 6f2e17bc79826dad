# SPDX-License-Identifier: Apache-2.0
"""Which GPUs instances may be placed on."""

from __future__ import annotations

import pytest

from pytriton.serving.repository.reading.instances import visible_gpu_ids


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, (0, 1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "2"}, (0,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0, -1, 1"}, (0,)),
        ({"TRITON_SERVER_CPU_ONLY": "1"}, ()),
    ],
)
def test_devices_are_counted_as_processes_see_them(tmp_path, environment, expected):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpu_ids(environment, tmp_path) == expected


def test_machine_without_devices_has_no_gpu(tmp_path):
    assert visible_gpu_ids({}, tmp_path) == ()
