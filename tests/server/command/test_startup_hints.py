# SPDX-License-Identifier: Apache-2.0
"""What is said beside the errors of a server that does not start."""

from __future__ import annotations

import pytest

from pytriton.serving.server.command.startup import port_hint, repository_hints


@pytest.mark.parametrize(
    "service, option",
    [
        ("GRPC", "--grpc-port"),
        ("Metrics", "--metrics-port"),
        ("Sagemaker", "--sagemaker-port"),
        ("Vertex AI", "--vertex-ai-port"),
    ],
)
def test_port_in_use_names_the_option(service, option):
    taken = f"failed to start {service} service: Unavailable - Socket '::1:1' already in use "

    assert port_hint(taken).endswith(f"choose another port with {option}")
    assert port_hint(f"failed to start {service} service: Unavailable - Socket '1.2.3.4:1'") == ""


def test_what_is_no_repository_is_named(tmp_path):
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "config.pbtxt").touch()
    good = [str(tmp_path / "models"), "s3://bucket/none"]

    assert repository_hints(good) == []
    for path, words in (
        (tmp_path / "none", f"{tmp_path}/none does not exist"),
        (model / "config.pbtxt", f"{model}/config.pbtxt is a file"),
        (model, f"{model} is the folder of one model, as it has a config.pbtxt"),
    ):
        (hint,) = repository_hints([*good, str(path)])
        assert words in hint
    assert hint.endswith(f"--model-repository={tmp_path}/models")


def test_model_without_the_folder_of_a_version_is_named(tmp_path):
    flat, good = tmp_path / "flat", tmp_path / "good"
    flat.mkdir()
    (flat / "model.py").touch()
    (good / "1").mkdir(parents=True)
    (good / "model.py").touch()

    assert repository_hints([str(tmp_path)]) == [
        f"{flat}/model.py is not in the folder of a version: move it to {flat}/1/model.py"
    ]
