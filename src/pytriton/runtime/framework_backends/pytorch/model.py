# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend: runs the models whose configuration says `backend: "pytorch"`.

A model is a `torch.nn.Module` in Python, TorchScript, or a `.pt2` file; two modules beside this one
run the last two. docs/pytorch.md describes what users see.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.batch_tensors import BatchTensors
from pytriton.runtime.framework_backends.pytorch import configuration, library
from pytriton.runtime.framework_backends.pytorch.configuration import (
    STRING,
    ConfiguredTensors,
    ModuleParameters,
    check_types,
    read_tensors,
)
from pytriton.runtime.framework_backends.pytorch.library import (
    TensorConverter,
    Torch,
    execution_failure,
)
from pytriton.runtime.framework_backends.pytorch.packages import PackageModel
from pytriton.runtime.framework_backends.pytorch.torchscript import TorchScriptModel
from pytriton.runtime.pb_utils.batch import Batch
from pytriton.runtime.pb_utils.logger import Logger


class ModuleModel:
    """A module in Python, or a TorchScript model that is called in the same way."""

    def __init__(self, torch: Torch, module: Any, tensors: ConfiguredTensors, device: Any) -> None:
        self._torch = torch
        self._module = module
        self.converter = TensorConverter(torch, device, tensors.all_outputs)
        self._ordered = [entry.name for entry in tensors.all_inputs]
        self._positions = {entry.name: index for index, entry in enumerate(tensors.all_outputs)}

    @classmethod
    def load(
        cls,
        torch: Torch,
        path: Path,
        tensors: ConfiguredTensors,
        device: Any,
        parameters: ModuleParameters,
    ) -> ModuleModel:
        """Load a module.

        Raises:
            InternalError: The file has no module, or cannot be loaded.
        """
        library.set_threads(torch, parameters.threads, parameters.inter_op_threads)
        Logger.log_verbose(
            f"Torch parallelism settings for '{tensors.model}': "
            f"NUM_THREADS = {parameters.threads}; "
            f"NUM_INTEROP_THREADS = {parameters.inter_op_threads}; "
        )
        with torch.inference_mode():
            if path.suffix == ".py":
                module = _load_module(torch, path, tensors.model, device, parameters)
            else:
                Logger.log_info(f"Loading '{tensors.model}' as TorchScript")
                module = _load_script(torch, path, tensors.model, device)
            if device is None:
                device = _device_of(module)
            module = module.to(device).eval()
        if path.suffix == ".py":
            Logger.log_verbose(
                f"'torch.compile' optional parameter(s) for '{tensors.model}': "
                f"{parameters.compile_arguments}"
            )
            module = torch.compile(module, **parameters.compile_arguments)
        return cls(torch, module, tensors, device)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Returns the wanted outputs of one call.

        Raises:
            InternalError: The module failed.
            InvalidArgumentError: An output contradicts the configuration.
        """
        make = self.converter.tensor
        with self._torch.inference_mode():
            try:
                result = self._module(*[make(inputs[name]) for name in self._ordered])
                results = _results(self._torch, result)
            except Exception as error:
                raise execution_failure(error) from error
            return self.converter.outputs(results, self._positions, wanted)


def _results(torch: Torch, result: Any) -> Sequence[Any]:
    """Returns the tensors that a call returned.

    Raises:
        TypeError: It returned something else.
    """
    results = result if isinstance(result, tuple | list) else (result,)
    for each in results:
        if not isinstance(each, torch.Tensor):
            raise TypeError(
                f"expected a tensor, or a tuple or list of tensors from the model, got "
                f"{type(each).__name__}"
            )
    return results


def _load_script(torch: Torch, path: Path, model: str, device: Any) -> Any:
    try:
        return torch.jit.load(str(path), map_location=device)
    except Exception as error:
        raise InternalError(f"failed to load model '{model}': {error}") from error


def _load_module(
    torch: Torch,
    path: Path,
    model: str,
    device: Any,
    parameters: ModuleParameters,
) -> Any:
    """Make the module of a file, with the weights that are beside it."""
    source = _import(model, path)
    module_class = find_module_class(source, torch.nn.Module)
    if module_class is None:
        raise InternalError(f"Cannot find a subclass of torch.nn.Module in {path}")
    module = module_class()
    weights = path.with_suffix(".pt")
    if not weights.is_file():
        Logger.log_info(
            f"model '{model}': there are no weights in {weights}, it has those of its code"
        )
        return module
    # Mapped weights are shared by the processes of a model's instances, as pages of the file.
    is_shared = parameters.shares_weights
    state = torch.load(str(weights), map_location=device, weights_only=True, mmap=is_shared)
    module.load_state_dict(state, assign=is_shared)
    return module


def _import(model: str, path: Path) -> ModuleType:
    """Import a file as a module with the name of its model; it may import files beside it."""
    folder, own_folder = str(path.parent), str(Path(__file__).parent)
    if folder not in sys.path:
        # The folder of this backend is on the path, too, and has files with usual names.
        place = sys.path.index(own_folder) if own_folder in sys.path else len(sys.path)
        sys.path.insert(place, folder)
    spec = importlib.util.spec_from_file_location(model, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[model] = module
    spec.loader.exec_module(module)
    return module


def find_module_class(source: ModuleType, base: type[Any]) -> type[Any] | None:
    """Returns the class of a file that is the model; None if there is none.

    Classes of the file itself come first, then those that it imports, at last torch's own. Triton's
    backend takes the first by name, so an import such as `Linear` may win there.
    """
    found = [
        value
        for _, value in sorted(vars(source).items())
        if isinstance(value, type) and issubclass(value, base) and value is not base
    ]
    return min(found, key=lambda each: _rank(each, source.__name__), default=None)


def _rank(module_class: type[Any], source: str) -> int:
    if module_class.__module__ == source:
        return 0
    return 2 if module_class.__module__.split(".")[0] == "torch" else 1


def _device_of(module: Any) -> Any:
    parameter = next(iter(module.parameters()), None)
    if parameter is None:
        raise InternalError("Cannot determine model device")
    return parameter.device


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
