# SPDX-License-Identifier: Apache-2.0
"""Ensembles and the models of their steps in a repository on disk."""

from __future__ import annotations

from pathlib import Path

from tests.repository.scene import write_config, write_model

_TENSORS = """
max_batch_size: 8
input [ {{ name: "IN" data_type: {0} dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: {0} dims: [ -1 ] }} ]
"""


def step_config(data_type: str = "TYPE_FP32", more: str = "") -> str:
    """A model that may be a step: one input, one output."""
    return f'backend: "python"{_TENSORS.format(data_type)}{more}'


def ensemble_config(*models: str, data_type: str = "TYPE_FP32", more: str = "") -> str:
    """An ensemble that passes its input through these models; `b:2` is version 2 of `b`."""
    names = ["IN", *(f"t{index}" for index in range(1, len(models))), "OUT"]
    steps = ""
    for index, model in enumerate(models):
        name, _, version = model.partition(":")
        steps += (
            f'step {{ model_name: "{name}" model_version: {version or -1} '
            f'input_map {{ key: "IN" value: "{names[index]}" }} '
            f'output_map {{ key: "OUT" value: "{names[index + 1]}" }} }}\n'
        )
    tensors = _TENSORS.format(data_type)
    return f'platform: "ensemble"{tensors}ensemble_scheduling {{ {steps} }}\n{more}'


def write_step(
    repository: Path, name: str, data_type: str = "TYPE_FP32", more: str = "", versions=("1",)
) -> Path:
    return write_model(repository, name, step_config(data_type, more), versions)


def write_ensemble(
    repository: Path, name: str, *models: str, versions=("1",), **options: str
) -> Path:
    directory = write_model(repository, name, ensemble_config(*models, **options), ())
    for version in versions:
        (directory / version).mkdir()
    return directory


def change_ensemble(repository: Path, name: str, *models: str, **options: str) -> None:
    write_config(repository / name, ensemble_config(*models, **options))
