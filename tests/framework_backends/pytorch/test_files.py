# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.runtime.framework_backends.pytorch.configuration import (
    ModelForm,
    PackageKind,
    form_of,
    model_file,
    module_file,
    package_kind,
)

VERSION = Path("/models/m/1")


def there(*names):
    return lambda path: path in [VERSION / name for name in names]


@pytest.mark.parametrize(
    "config, form",
    [
        (
            {"platform": "pytorch_libtorch", "default_model_filename": "model.pt"},
            ModelForm.TORCHSCRIPT,
        ),
        ({}, ModelForm.TORCHSCRIPT),
        ({"platform": "torch_aoti"}, ModelForm.PACKAGE),
        ({"platform": "pytorch_libtorch", "default_model_filename": "a.pt2"}, ModelForm.PACKAGE),
        ({"platform": "torch_aoti", "runtime": "model.py"}, ModelForm.MODULE),
    ],
)
def test_form_follows_from_the_configuration(config, form):
    assert form_of(config) is form


@pytest.mark.parametrize(
    "config, capability, name",
    [
        ({}, "", "model.pt"),
        ({"platform": "torch_aoti"}, "", "model.pt2"),
        ({"default_model_filename": "my.pt"}, "", "my.pt"),
        ({"cc_model_filenames": {"8.0": "a100.pt"}}, "8.0", "a100.pt"),
        ({"cc_model_filenames": {"8.0": "a100.pt"}}, "9.0", "model.pt"),
    ],
)
def test_file_follows_from_the_configuration(config, capability, name):
    assert model_file(config, VERSION, there(name), capability) == VERSION / name


@pytest.mark.parametrize(
    "platform, text",
    [
        ("pytorch_libtorch", "unable to find '/models/m/1/model.pt' for model instance 'm'"),
        (
            "torch_aoti",
            'PyTorch inductor model file "/models/m/1/model.pt2" is unreachable or inaccessible.',
        ),
    ],
)
def test_missing_file_is_unavailable(platform, text):
    with pytest.raises(UnavailableError) as raised:
        model_file({"name": "m", "platform": platform}, VERSION, there())

    assert str(raised.value) == text


@pytest.mark.parametrize(
    "files, name",
    [
        (("net.py", "model.py", "model.pt"), "net.py"),
        (("model.py", "model.pt"), "model.py"),
        (("model.pt",), "model.pt"),
    ],
)
def test_module_is_the_first_file_that_is_there(files, name):
    config = {"default_model_filename": "net.py"}

    assert module_file(config, VERSION, there(*files)) == VERSION / name


def test_missing_module_is_an_error():
    with pytest.raises(InternalError) as raised:
        module_file({}, VERSION, there())

    assert str(raised.value) == "No model found in /models/m/1/['model.py', 'model.pt']"


@pytest.mark.parametrize(
    "members, kind",
    [
        (["m/data/aotinductor/model/x.so", "m/archive_format"], PackageKind.COMPILED),
        (["data/aotinductor/model/x.so"], PackageKind.COMPILED),
        (["m/models/model.json", "m/data/weights/weight_0"], PackageKind.EXPORTED),
        (["serialized_exported_program.json", "version"], PackageKind.EXPORTED),
        (["m/code/__torch__.py", "m/constants.pkl"], None),
    ],
)
def test_package_kind_follows_from_the_archive(members, kind):
    assert package_kind(members) is kind
