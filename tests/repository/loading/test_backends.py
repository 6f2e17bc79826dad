# SPDX-License-Identifier: Apache-2.0
"""From a configuration to the loader of the model."""

from __future__ import annotations

import pytest

from pytriton.serving.engine.config import config_from_text
from pytriton.serving.repository.loading.plans import WORKERS, find_loader


def config(text):
    return config_from_text(f'name: "m" {text}', "config.pbtxt")


@pytest.mark.parametrize("backend", ["python", "onnxruntime", "mine", "ensemble"])
def test_models_of_every_backend_run_in_workers(backend):
    loaders = {WORKERS: object(), "ensemble": object()}

    assert find_loader(loaders, config(f'backend: "{backend}"')) is loaders[WORKERS]


def test_ensembles_have_a_loader_of_their_own():
    loaders = {WORKERS: object(), "ensemble": object()}

    assert find_loader(loaders, config('platform: "ensemble"')) is loaders["ensemble"]
