# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests, made from texts, and their configurations."""

from __future__ import annotations

import contextlib
import io
import itertools
import pathlib
import textwrap
import warnings

import numpy as np

from pytriton.runtime.framework_backends.pytorch.model import TritonPythonModel
from pytriton.runtime.pb_utils.batch import Batch
from pytriton.serving.engine.config import config_from_text, config_to_json
from pytriton.testing import ModelHarness
from tests.repository_e2e.model_files import write_model

BACKEND = (
    pathlib.Path(__file__).parents[3] / "src/pytriton/runtime/framework_backends/pytorch/model.py"
)

_numbers = itertools.count()


def tensor(name, data_type="FP32", dims="-1", extra=""):
    return f'{{ name: "{name}" data_type: TYPE_{data_type} dims: [ {dims} ] {extra} }}'


def config(inputs, outputs, extra="", *, max_batch_size=8, platform="pytorch_libtorch"):
    """A config.pbtxt; tensors are names, or entries that `tensor` made."""
    entries = [
        ", ".join(each if each.startswith("{") else tensor(each) for each in names)
        for names in (inputs, outputs)
    ]
    kinds = "" if "instance_group" in extra else "instance_group [{ kind: KIND_CPU }]\n"
    return (
        f'backend: "pytorch"\nplatform: "{platform}"\nmax_batch_size: {max_batch_size}\n'
        f"input [ {entries[0]} ]\noutput [ {entries[1]} ]\n{kinds}{extra}\n"
    )


def parameters(**values):
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


def script(arguments, body, *, freezes=False, is_training=False, **weights):
    """The bytes of a TorchScript model whose `forward` takes and does this."""
    import torch  # noqa: PLC0415  tests that need it skip without it

    def make_weights(self):
        super(torch.jit.ScriptModule, self).__init__()
        for name, value in weights.items():
            setattr(self, name, torch.nn.Parameter(value))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # torch has one type for all modules of a class, so each model needs a class of its own.
        name = f"Model{next(_numbers)}"
        module = type(name, (torch.jit.ScriptModule,), {"__init__": make_weights})()
        lines = textwrap.indent(textwrap.dedent(body), "    ")
        module.define(f"def forward(self, {arguments}):\n{lines}\n")
        module.train(is_training)
        if freezes:
            module = torch.jit.freeze(module)
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
    return buffer.getvalue()


def files(content, settings, name="model.pt"):
    return {f"1/{name}": content, "config.pbtxt": settings}


@contextlib.contextmanager
def loaded(folder, content, settings, name="model.pt", **more):
    """Load a model in this process."""
    place = folder / "m"
    write_model(place, {**files(content, settings, name), **more})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with ModelHarness(BACKEND, model_directory=place) as harness:
            yield harness


class Instance:
    """An instance of any kind, in this process; a harness has only instances on the CPU."""

    def __init__(self, folder, content, settings, name="model.pt", *, kind, **more):
        place = folder / "m"
        write_model(place, {**files(content, settings, name), **more})
        message = config_from_text(settings, "config.pbtxt")
        message.name = "m"
        self._outputs = [output.name for output in message.output]
        self._model = TritonPythonModel()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._model.initialize(
                {
                    "model_config": config_to_json(message).decode(),
                    "model_instance_kind": kind,
                    "model_instance_name": "m_0_0",
                    "model_instance_device_id": "0",
                    "model_repository": str(place),
                    "model_version": "1",
                    "model_name": "m",
                }
            )

    def execute(self, inputs):
        copies = {name: np.array(array) for name, array in inputs.items()}
        rows = len(next(iter(copies.values())))
        return self._model.execute_batch(Batch(copies, [rows], self._outputs))
