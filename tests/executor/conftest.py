# SPDX-License-Identifier: Apache-2.0
"""What tests of instances leave behind is taken away."""

from __future__ import annotations

import pytest

from pytriton.runtime.executor import device_blocks


@pytest.fixture(autouse=True)
def counts_of_gpu_tensors():
    """Forgotten after each test: the metrics that other tests of this process read have them."""
    yield
    device_blocks.tally.clear()
