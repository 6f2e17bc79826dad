# SPDX-License-Identifier: Apache-2.0
"""Where models run that do not say it: on GPUs, if their backend can use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton.serving.repository.reading import config_files
from pytriton.serving.repository.reading.backend_choice import (
    BackendCode,
    BackendFolders,
    CodeKind,
    may_use_gpus,
    package_folder,
)
from pytriton.serving.repository.reading.config_files import read_config
from pytriton.serving.repository.reading.layout import ModelPlace
from tests.repository.scene import write_config, write_model


def code(backend, *, is_ours=True):
    path = Path("/backends") / backend / "model.py"
    return BackendCode(kind=CodeKind.PYTHON, backend=backend, path=path, is_ours=is_ours)


@pytest.mark.parametrize(
    "backend, file",
    [
        ("onnxruntime", "capi/libonnxruntime_providers_cuda.so"),
        ("pytorch", "lib/libtorch_cuda.so"),
    ],
)
def test_package_for_gpus_is_known_by_a_file(tmp_path, backend, file):
    assert not may_use_gpus(code(backend), lambda _: tmp_path)
    assert not may_use_gpus(code(backend), lambda _: None)
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).touch()
    assert may_use_gpus(code(backend), lambda _: tmp_path)


def test_libraries_for_cpus_keep_their_models_there():
    assert not any(may_use_gpus(code(each)) for each in ("fil", "openvino", "sklearn"))


@pytest.mark.parametrize("backend", ["onnxruntime", "mine"])
def test_backends_of_others_decide_themselves(backend):
    assert may_use_gpus(code(backend, is_ours=False), lambda _: None)


def test_package_is_found_without_being_imported():
    assert (package_folder("numpy") / "__init__.py").exists()
    assert package_folder("not_installed_anywhere") is None


@pytest.fixture
def kinds(repository, monkeypatch):
    """Returns the kinds of a model's instance groups on a machine with two GPUs."""
    monkeypatch.setattr(config_files, "may_use_gpus", lambda code: not code.is_ours)

    place = ModelPlace(repository, write_model(repository))

    def read(text, folders=None):
        write_config(place.directory, text)
        config = read_config(place, "m", gpu_ids=(0, 1), backend_folders=folders)
        return [(group.kind, list(group.gpus)) for group in config.instance_group]

    return read


CPU, GPU = (2, []), (1, [0, 1])


def test_instances_without_a_kind_are_where_their_backend_can_run(kinds, tmp_path):
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "model.py").touch()

    assert kinds('backend: "onnxruntime"') == [CPU]
    assert kinds('backend: "onnxruntime"', BackendFolders(triton=tmp_path)) == [GPU]
    assert kinds('backend: "python"') == [GPU]
    assert kinds('backend: "nowhere"') == [GPU]


def test_instances_with_a_kind_are_where_it_says(kinds):
    assert kinds('backend: "onnxruntime" instance_group [{ kind: KIND_GPU }]') == [GPU]


def test_environment_of_a_model_may_have_other_packages(kinds):
    other = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/e" } }'

    assert kinds(f'backend: "onnxruntime" {other}') == [GPU]
