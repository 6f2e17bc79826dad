# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend: runs the models whose configuration says `backend: "pytorch"`.

A model is TorchScript, a `.pt2` file, or a `torch.nn.Module` in Python; the modules beside this one
run these forms. docs/pytorch.md describes what users see.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.batch_tensors import BatchTensors
from pytriton.runtime.framework_backends.pytorch import configuration, library
from pytriton.runtime.framework_backends.pytorch.configuration import (
    STRING,
    check_types,
    read_tensors,
)
from pytriton.runtime.framework_backends.pytorch.modules import ModuleModel
from pytriton.runtime.framework_backends.pytorch.packages import PackageModel
from pytriton.runtime.framework_backends.pytorch.torchscript import TorchScriptModel
from pytriton.runtime.pb_utils.batch import Batch

_Runnable = TorchScriptModel | PackageModel | ModuleModel


class TritonPythonModel:
    """One instance of a model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Leave the configuration as it is: the files do not say enough about tensors."""
        name = auto_complete_model_config.as_dict().get("name", "")
        pb_utils.Logger.log_warn(
            f"skipping model configuration auto-complete for '{name}': not supported for pytorch "
            "backend"
        )
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        config = json.loads(args["model_config"])
        self._batch_tensors = BatchTensors(config)
        self._strings = [entry["name"] for entry in config["input"] if entry["data_type"] == STRING]
        self._model = _load(config, args)
        # Inputs that other models have on a GPU stay there, and so do outputs until they are sent.
        tensors = self._batch_tensors
        is_plain = not tensors.has_inputs and not tensors.has_outputs
        self.takes_gpu_arrays = args["model_instance_kind"] == "GPU" and is_plain
        self._model.converter.keeps_on_gpu = self.takes_gpu_arrays

    def execute_batch(self, batch: Batch) -> dict[str, Any]:
        """Run the model once for all requests of a batch."""
        tensors = self._batch_tensors
        inputs = batch.inputs
        for name in self._strings:
            _refuse_invalid(batch, name)
        if tensors.has_inputs:
            inputs = tensors.prepare(inputs, batch.rows, batch.shapes)
        outputs = self._model.run(inputs, batch.output_names)
        if tensors.has_outputs:
            return tensors.scatter(outputs, batch.inputs, batch.rows, batch.shapes)
        return outputs


def _load(config: dict[str, Any], args: dict[str, str]) -> _Runnable:
    """Load a model; what needs no torch is checked before it is imported, which takes seconds."""
    tensors = read_tensors(config)
    form = configuration.form_of(config)
    check_types(tensors, takes_strings=form is configuration.ModelForm.TORCHSCRIPT)
    if pb_utils.using_decoupled_model_transaction_policy(config):
        raise InvalidArgumentError(
            f"model '{tensors.model}' is decoupled, but models of the pytorch backend send one "
            "response for each request"
        )
    directory = Path(args["model_repository"], args["model_version"])
    kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
    if form is configuration.ModelForm.MODULE:
        path = configuration.module_file(config, directory, Path.is_file)
        settings = configuration.read_module_parameters(config)
        torch = library.import_torch()
        device = library.device_of(torch, kind, device_id)
        return ModuleModel.load(torch, path, tensors, device, settings)
    script_settings = configuration.read_script_parameters(config)
    if kind != "GPU":
        path = configuration.model_file(config, directory, Path.is_file)
    torch = library.import_torch()
    device = library.device_of(torch, kind, device_id)
    if kind == "GPU":
        capability = library.capability_of(torch, device)
        path = configuration.model_file(config, directory, Path.is_file, capability)
    if form is configuration.ModelForm.PACKAGE:
        instance = args["model_instance_name"]
        return PackageModel.load(torch, path, instance, tensors, device, script_settings)
    return TorchScriptModel.load(torch, path, tensors, device, script_settings)


def _refuse_invalid(batch: Batch, name: str) -> None:
    """Fail the requests whose strings are not UTF-8, and let the others run."""
    array = batch.inputs[name]
    for position, index in library.find_invalid(array, batch.rows):
        text = (
            f"expected UTF-8 in input '{name}', because strings of PyTorch have to be; "
            f"{array[index]!r} is not"
        )
        batch.fail(position, InvalidArgumentError(text))
        array[index] = b""
