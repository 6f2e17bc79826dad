# SPDX-License-Identifier: Apache-2.0
"""Configurations of ensembles, written from a few Python values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: its model, and the ensemble's tensor for each input and output of that."""

    model: str
    takes: Mapping[str, str]
    gives: Mapping[str, str]
    version: int = -1


def tensor(name: str, dtype: str = "INT32", dims: str = "-1", more: str = "") -> str:
    """One tensor of a configuration."""
    return f'{{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] {more} }}'


def ensemble(
    inputs: Sequence[str], outputs: Sequence[str], steps: Sequence[Step], more: str = ""
) -> str:
    """The configuration of an ensemble."""
    lines = ['platform: "ensemble"']
    lines += [f"input [ {one} ]" for one in inputs]
    lines += [f"output [ {one} ]" for one in outputs]
    scheduling = "\n".join(map(_step, steps))
    return "\n".join([*lines, more, f"ensemble_scheduling {{\n{scheduling}\n}}", ""])


def _step(step: Step) -> str:
    maps = [
        f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in step.takes.items()
    ] + [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in step.gives.items()]
    return (
        f'step {{ model_name: "{step.model}" model_version: {step.version}\n'
        + "\n".join(maps)
        + " }"
    )
