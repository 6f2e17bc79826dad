# SPDX-License-Identifier: Apache-2.0
"""The models that both servers offer over gRPC: those of the HTTP comparison, and streams."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
from pathlib import Path
from typing import Any

from tests.differential import grpc_stream_functions, model_table
from tests.differential.model_table import Model, Port

HERE = Path(__file__).parent
_IN = (Port("IN", "INT32", (1,)),)
_OUT = (Port("OUT", "INT32", (1,)),)

# Each function of the module yields the outputs of one response after another.
STREAMS = tuple(
    Model(name, function, _IN, _OUT, decoupled=True)
    for name, function in inspect.getmembers(grpc_stream_functions, inspect.isgeneratorfunction)
)


def stream_config(model: Model) -> str:
    """The config.pbtxt of a stream."""
    return model_table.config_text(dataclasses.replace(model, decoupled=True))


def write_repository(folder: Path) -> None:
    """Write every model as a Python-backend model under `folder`."""
    model_table.write_repository(folder)
    for model in STREAMS:
        version = folder / model.name / "1"
        version.mkdir(parents=True)
        (folder / model.name / "config.pbtxt").write_text(stream_config(model))
        shutil.copy(HERE / "grpc_python_backend_stream.py", version / "model.py")
        shutil.copy(inspect.getfile(grpc_stream_functions), version / "model_functions.py")


def stream_function(model: Model) -> Any:
    """The model's function in the form that `bind` takes for decoupled models."""

    def infer(requests: list[Any]) -> Any:
        # One request at a time: without batching there is never another in the list.
        (request,) = requests
        for outputs in model.function(dict(request.data), dict(request.parameters or {})):
            yield [outputs]

    return infer
