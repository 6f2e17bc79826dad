# SPDX-License-Identifier: Apache-2.0
"""Runs modules in Python: a `torch.nn.Module` in the model's own file, compiled by torch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.pytorch import library
from pytriton.runtime.framework_backends.pytorch.configuration import (
    ConfiguredTensors,
    ModuleParameters,
)
from pytriton.runtime.framework_backends.pytorch.library import (
    TensorConverter,
    Torch,
    execution_failure,
)
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
