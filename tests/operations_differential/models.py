# SPDX-License-Identifier: Apache-2.0
"""Model repositories of the surfaces: small models of the Python backend."""

from __future__ import annotations

import textwrap
from pathlib import Path

_MIRROR = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives every input back as the output of the same number."""

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(tensor.name().replace("INPUT", "OUTPUT"), tensor.as_numpy())
                    for tensor in request.inputs()
                ]
            )
            for request in requests
        ]
'''

_FAILING = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers every request with an error."""

    def execute(self, requests):
        error = pb_utils.TritonError("failed as asked")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
'''


def write_model(repository: Path, name: str, code: str, config: str, *, version: str = "1") -> Path:
    """Write a model of the Python backend and return its folder."""
    folder = repository / name
    (folder / version).mkdir(parents=True, exist_ok=True)
    (folder / version / "model.py").write_text(textwrap.dedent(code).lstrip())
    (folder / "config.pbtxt").write_text(textwrap.dedent(config).lstrip())
    return folder


def write_mirror(
    repository: Path,
    name: str,
    datatype: str,
    *,
    inputs: int = 1,
    max_batch_size: int = 0,
    more: str = "",
) -> Path:
    """A model that gives INPUT0, INPUT1, ... of any length back as OUTPUT0, OUTPUT1, ..."""
    tensors = "\n".join(
        f'{kind} {{ name: "{kind.upper()}{number}" data_type: TYPE_{datatype} dims: -1 }}'
        for kind in ("input", "output")
        for number in range(inputs)
    )
    config = f'backend: "python"\nmax_batch_size: {max_batch_size}\n{tensors}\n{more}\n'
    return write_model(repository, name, _MIRROR, config)


def write_failing(repository: Path, name: str) -> Path:
    """A model that answers every request with the error "failed as asked"."""
    config = """
        backend: "python"
        input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
        output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
    """
    return write_model(repository, name, _FAILING, config)


def write_common(repository: Path) -> None:
    """What most surfaces need: numbers, two inputs, texts, batches, and a model that fails."""
    write_mirror(repository, "numbers", "INT32")
    write_mirror(repository, "pair", "INT32", inputs=2)
    write_mirror(repository, "texts", "STRING")
    write_mirror(repository, "batched", "FP32", max_batch_size=8)
    write_failing(repository, "failing")
