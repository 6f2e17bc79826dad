# SPDX-License-Identifier: Apache-2.0
"""Repositories that share names of models: each model adds a number of its own."""

from __future__ import annotations

from pathlib import Path

from tests.operations_differential.models import write_model

_ADD = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds a number."""

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + NUMBER)]
            )
            for request in requests
        ]
'''

_CALL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls another model."""

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        called = pb_utils.InferenceRequest(
            model_name="NAME", requested_output_names=["OUTPUT0"], inputs=request.inputs()
        ).exec()
        if called.has_error():
            return pb_utils.InferenceResponse(error=called.error())
        return pb_utils.InferenceResponse(called.output_tensors())
'''

_TENSORS = """
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""


def write_adding(
    repository: Path, name: str, number: int, more: str = "", *, version: str = "1"
) -> Path:
    """A model that adds a number to its input."""
    code = _ADD.replace("NUMBER", str(number))
    return write_model(
        repository, name, code, f'backend: "python"\n{_TENSORS}{more}', version=version
    )


def write_calling(repository: Path, name: str, called: str) -> None:
    """A model that calls another."""
    config = f'backend: "python"\n{_TENSORS}'
    write_model(repository, name, _CALL.replace("NAME", called), config)


def write_ensemble(repository: Path, name: str, step: str, more: str = "") -> None:
    """An ensemble of one step."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{ step {{ model_name: "{step}" '
        f'model_version: -1 {more} input_map {{ key: "INPUT0" value: "INPUT0" }} '
        'output_map { key: "OUTPUT0" value: "OUTPUT0" } } }\n'
    )


def write_two(models: Path) -> None:
    """Two repositories with models of the same names, ensembles of them, and models that call."""
    first, second = models / "first", models / "second"
    write_adding(first, "same", 1)
    write_adding(second, "same", 20)
    write_adding(second, "same", 30, version="2")
    write_adding(first, "mine", 2)
    write_adding(second, "other", 40)
    write_ensemble(first, "pipe", "same")
    write_ensemble(second, "pipe", "same")
    write_ensemble(first, "pipe_first", "same")
    write_ensemble(second, "pipe_second", "same")
    write_ensemble(first, "pipe_other", "other")
    write_ensemble(first, "pipe_named", "same", f'model_namespace: "{second}"')
    write_calling(first, "call_same", "same")
    write_calling(first, "call_other", "other")


def write_refused(models: Path) -> None:
    """Models that cannot be loaded, and ensembles of them, in three repositories."""
    first, second, third = models / "first", models / "second", models / "third"
    write_adding(first, "half", 1, "nonsense")
    write_adding(second, "half", 2)
    write_adding(second, "twice", 1)
    write_adding(third, "twice", 2)
    write_ensemble(first, "pipe_twice", "twice")
    write_ensemble(first, "pipe_nothing", "nothing")
    write_ensemble(first, "pipe_moving", "moving")
    write_adding(second, "moving", 10)
    agents = 'model_repository_agents { agents [ { name: "NAME" parameters { PARAMETERS } } ] }'
    parameters = 'key: "MD5:1/model.py" value: "0"'
    for name in ("checksum", "other_agent"):
        text = agents.replace("NAME", name).replace("PARAMETERS", parameters)
        write_adding(first, f"agent_{name}", 1, text)
