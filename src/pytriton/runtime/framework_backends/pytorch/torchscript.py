# SPDX-License-Identifier: Apache-2.0
"""Runs TorchScript models: `torch.jit.load`, and `forward` by its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.pytorch import library, naming, weights
from pytriton.runtime.framework_backends.pytorch.configuration import (
    ConfiguredTensors,
    ScriptParameters,
)
from pytriton.runtime.framework_backends.pytorch.library import (
    BackendLog,
    TensorConverter,
    Torch,
    execution_failure,
)
from pytriton.runtime.framework_backends.shared import explain_file


class TorchScriptModel:
    """A loaded TorchScript model on one device."""

    def __init__(
        self,
        torch: Torch,
        module: Any,
        tensors: ConfiguredTensors,
        converter: TensorConverter,
        parameters: ScriptParameters,
        log: BackendLog,
    ) -> None:
        self._torch = torch
        self._converter = converter
        self._parameters = parameters
        self._forward: Any = getattr(module, "forward", None)
        inputs = naming.bind_inputs(tensors, _arguments(self._forward, tensors.model))
        outputs = naming.bind_outputs(tensors)
        for warning in (inputs.warning, outputs.warning):
            if warning:
                log.write_warning(f"model '{tensors.model}': {warning}")
        self._takes_dictionary = inputs.takes_dictionary
        self._ordered = sorted(inputs.positions, key=inputs.positions.__getitem__)
        self._positions = outputs.positions
        self._no_gradients = torch.inference_mode if parameters.inference_mode else torch.no_grad

    @classmethod
    def load(
        cls,
        torch: Torch,
        path: Path,
        tensors: ConfiguredTensors,
        device: Any,
        parameters: ScriptParameters,
        log: BackendLog,
    ) -> TorchScriptModel:
        """Load a model.

        Raises:
            InternalError: The file is not a TorchScript model, or cannot be served.
            InvalidArgumentError: It does not fit to its configuration.
        """
        library.apply_parameters(torch, parameters)
        with torch.inference_mode(parameters.inference_mode):
            try:
                module = torch.jit.load(str(path), map_location=device)
            except Exception as error:
                explanation = _explain(error) or explain_file(path)
                raise InternalError(
                    f"failed to load model '{tensors.model}': {error}{explanation}"
                ) from error
            if parameters.shares_weights:
                weights.share(torch, module, path, device, tensors.model, log)
        if getattr(module, "training", False):
            log.write_warning(
                f"model '{tensors.model}' was saved in training mode and runs in it: call eval() "
                "before it is saved"
            )
        converter = TensorConverter(torch, device, tensors.all_outputs)
        return cls(torch, module, tensors, converter, parameters, log)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Returns the wanted outputs of one call.

        Raises:
            InternalError: The model failed.
            InvalidArgumentError: An output is not what the configuration says.
        """
        make = self._converter.tensor
        with self._no_gradients():
            try:
                if self._takes_dictionary:
                    result = self._forward({name: make(array) for name, array in inputs.items()})
                else:
                    result = self._forward(*[make(inputs[name]) for name in self._ordered])
                results = _results(self._torch, result)
            except Exception as error:
                raise execution_failure(error) from error
            arrays = self._converter.outputs(results, self._positions, wanted)
        if self._parameters.cleans_cache:
            self._torch.cuda.empty_cache()
        return arrays


def _explain(error: Exception) -> str:
    """Returns what to do if the file was saved with the other function of torch."""
    if "constants.pkl" not in str(error):
        return ""
    return (
        " (the file is of torch.save, with weights or a pickled module: save TorchScript with"
        ' torch.jit.save, or serve the module with runtime "model.py")'
    )


def _arguments(forward: Any, model: str) -> list[naming.ForwardArgument]:
    """Returns what `forward` takes, without the module itself."""
    if forward is None:
        raise InternalError(f"failed to load model '{model}': it has no method 'forward'")
    arguments = [
        naming.ForwardArgument(each.name, each.type.kind(), each.type.str())
        for each in forward.schema.arguments
    ]
    return arguments[1:] if arguments and arguments[0].kind == "ClassType" else arguments


def _results(torch: Torch, result: Any) -> Sequence[Any]:
    """Returns the results of a call, each a tensor or a list of strings.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, tuple):
        for index, each in enumerate(result):
            _check_result(torch, each, f"output at index {index}")
        return result
    _check_result(torch, result, "output")
    return (result,)


def _check_result(torch: Torch, result: Any, subject: str) -> None:
    if isinstance(result, torch.Tensor):
        return
    if not isinstance(result, list):
        raise ValueError(  # noqa: TRY004  its text is what counts
            f"{subject} must be of type Tensor, List[str] or Tuple containing one of these two "
            f"types. It should not be a List / Dictionary of Tensors or a Scalar, received "
            f"{type(result).__name__}"
        )
    if result and not isinstance(result[0], str):
        raise ValueError(
            f"{subject} must be of type Tensor or List[str], received "
            f"List[{type(result[0]).__name__}]"
        )
