# SPDX-License-Identifier: Apache-2.0
"""One zygote for all tests of the worker, and workers that end with their test."""

from __future__ import annotations

import pytest

from tests.python_backend.worker_rig import WorkerRig, ZygoteRig


@pytest.fixture(scope="session")
def zygote():
    rig = ZygoteRig()
    yield rig
    rig.close()


@pytest.fixture
def start_worker(zygote, tmp_path):
    """Starts workers with the source of their model; the model is not initialized yet."""
    rigs = []

    def start(source="", **options):
        rigs.append(WorkerRig(zygote, tmp_path, source, **options))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()


@pytest.fixture
def worker(start_worker):
    """Starts workers whose model can take batches."""
    return lambda source, **options: start_worker(source, **options).start()
