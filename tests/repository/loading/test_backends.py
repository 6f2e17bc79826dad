# SPDX-License-Identifier: Apache-2.0
"""From the name of a backend to the loader of its models."""

from __future__ import annotations

import pytest

from pytriton.engine.config import config_from_text
from pytriton.errors import InvalidArgumentError
from pytriton.repository.loading.backends import find_loader


def config(text):
    return config_from_text(f'name: "m" {text}', "config.pbtxt")


def test_loader_is_found_by_the_name_of_the_backend():
    loaders = {"python": object(), "mine": object()}

    assert find_loader(loaders, config('backend: "python"')) is loaders["python"]
    assert find_loader(loaders, config('backend: "mine"')) is loaders["mine"]


@pytest.mark.parametrize(
    "text, name",
    [('backend: "onnxruntime"', "onnxruntime"), ('platform: "tensorrt_plan"', "tensorrt_plan")],
)
def test_backend_that_is_not_there_is_refused_with_those_that_are(text, name):
    with pytest.raises(InvalidArgumentError) as caught:
        find_loader({"python": object(), "mine": object()}, config(text))

    assert caught.value.message == (
        f"unable to find backend library for backend '{name}', "
        "this server runs models of backend 'python', 'mine'"
    )


def test_ensemble_has_a_loader_that_is_no_backend():
    loaders = {"python": object(), "ensemble": object()}

    assert find_loader(loaders, config('platform: "ensemble"')) is loaders["ensemble"]
    with pytest.raises(InvalidArgumentError, match=r"this server runs models of backend 'python'$"):
        find_loader(loaders, config('backend: "ensemble"'))
