# SPDX-License-Identifier: Apache-2.0
"""Runs `.pt2` files: code that AOTInductor compiled, and programs that `torch.export` saved.

A JSON text of the file describes its arguments and results. From it each tensor has a number and a
name by structure, for example `INPUT__1` and `ARGS[0][key]`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.pytorch import library
from pytriton.runtime.framework_backends.pytorch.configuration import (
    ConfiguredTensors,
    PackageKind,
    ScriptParameters,
    TensorEntry,
    package_kind,
)
from pytriton.runtime.framework_backends.pytorch.library import (
    TensorConverter,
    Torch,
    execution_failure,
)
from pytriton.runtime.framework_backends.shared import explain_file
from pytriton.runtime.pb_utils.logger import Logger

_SEQUENCES = ("builtins.tuple", "builtins.list", "collections.namedtuple")
_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")


def input_names(spec_text: str) -> list[tuple[str, ...]]:
    """Returns all names of each input tensor, in the order in which the model takes them.

    Args:
        spec_text: The structure of positional and keyword arguments, as torch writes it.

    Raises:
        InternalError: The model takes other structures than tuples, lists and dictionaries.
    """
    positional, keywords = _root(spec_text)["children_spec"]
    names: list[tuple[str, ...]] = [(name,) for name in _names(positional, "ARGS")]
    for key, child in _children(keywords):
        # Triton's backend leaves out the brackets of keywords, which its documentation has.
        names += zip(_names(child, f"KWARGS[{key}]"), _names(child, f"KWARGS{key}"), strict=True)
    return [(f"INPUT__{index}", *each) for index, each in enumerate(names)]


def output_names(spec_text: str) -> list[tuple[str, ...]]:
    """Returns all names of each output tensor, in the order in which the model returns them.

    Raises:
        InternalError: The model returns other structures than tuples, lists and dictionaries.
    """
    names = _names(_root(spec_text), "RESULT")
    return [(f"OUTPUT__{index}", name) for index, name in enumerate(names)]


def bind_inputs(
    model: str, instance: str, entries: Iterable[TensorEntry], names: list[tuple[str, ...]]
) -> dict[str, int]:
    """Returns the position of each configured input.

    Raises:
        InternalError: The model has no such input, or one is missing or configured twice.
    """
    positions = _positions("Input", instance, entries, names)
    if len(positions) != len(names):
        raise InternalError(
            f'Failed to load model "{model}": configuration expects {len(positions)} inputs, but '
            f"model expects {len(names)} inputs."
        )
    by_position: dict[int, str] = {}
    for name, position in positions.items():
        if position in by_position:
            raise InternalError(
                f'Failed to load model "{model}": inputs "{by_position[position]}" and "{name}" '
                "are the same tensor of the model."
            )
        by_position[position] = name
    return positions


def bind_outputs(
    instance: str, entries: Iterable[TensorEntry], names: list[tuple[str, ...]]
) -> dict[str, int]:
    """Returns the position of each configured output, which may be fewer than the model has.

    Raises:
        InternalError: The model has no such output.
    """
    return _positions("Output", instance, entries, names)


def _positions(
    kind: str, instance: str, entries: Iterable[TensorEntry], names: list[tuple[str, ...]]
) -> dict[str, int]:
    by_name = {name: position for position, each in enumerate(names) for name in each}
    positions = {}
    for entry in entries:
        position = by_name.get(entry.name)
        if position is None:
            known = ", ".join(" or ".join(each) for each in names)
            raise InternalError(
                f'{kind} "{entry.name}" for model instance "{instance}" is not found in model '
                f"{kind.lower()} map. The model has {known or 'none'}"
            )
        positions[entry.name] = position
    return positions


def _root(spec_text: str) -> Mapping[str, Any]:
    _version, root = json.loads(spec_text)
    return dict(root)


def _names(spec: Mapping[str, Any], name: str) -> Iterator[str]:
    if spec["type"] is None:
        yield name
        return
    for key, child in _children(spec):
        yield from _names(child, f"{name}[{key}]")


def _children(spec: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    children = spec["children_spec"]
    if spec["type"] in _SEQUENCES:
        return [(str(index), child) for index, child in enumerate(children)]
    if spec["type"] in _DICTIONARIES:
        keys = json.loads(spec["context"])
        return [(str(key), child) for key, child in zip(keys, children, strict=True)]
    raise InternalError(
        f"expected tuples, lists and dictionaries of tensors in the model, got {spec['type']}"
    )


# Compiled code reads wrong memory for a wrong shape, unless it finds this when it is run.
_CHECK_INPUTS = "AOTI_RUNTIME_CHECK_INPUTS"
# With this, torch loads tensors only. Archives may have pickles, which could run any code.
_ONLY_TENSORS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_MODEL_NAME = "model"  # of the model in a package, which may have several


class ExportedProgram(Protocol):
    """The model of a package; it takes and returns tensors in the order of their numbers."""

    @property
    def input_spec(self) -> str:
        """The structure of the arguments, as torch writes it."""

    @property
    def output_spec(self) -> str:
        """The structure of the results, as torch writes it."""

    def run(self, tensors: list[Any]) -> Sequence[Any]:
        """Run the model."""


class PackageModel:
    """A loaded package on one device."""

    def __init__(
        self,
        torch: Torch,
        program: ExportedProgram,
        instance: str,
        tensors: ConfiguredTensors,
        converter: TensorConverter,
        parameters: ScriptParameters,
    ) -> None:
        self._torch = torch
        self._program = program
        self.converter = converter
        self._parameters = parameters
        positions = bind_inputs(
            tensors.model,
            instance,
            tensors.all_inputs,
            input_names(program.input_spec),
        )
        self._ordered = sorted(positions, key=positions.__getitem__)
        self._positions = bind_outputs(
            instance, tensors.all_outputs, output_names(program.output_spec)
        )
        self._no_gradients = torch.inference_mode if parameters.inference_mode else torch.no_grad

    @classmethod
    def load(
        cls,
        torch: Torch,
        path: Path,
        instance: str,
        tensors: ConfiguredTensors,
        device: Any,
        parameters: ScriptParameters,
    ) -> PackageModel:
        """Load a package.

        Raises:
            InternalError: The file is no package, or does not fit to its configuration.
        """
        library.apply_parameters(torch, parameters)
        if parameters.shares_weights:
            Logger.log_warn(
                f"model '{tensors.model}': ENABLE_WEIGHT_SHARING has no effect on .pt2 files"
            )
        program = _load_program(torch, path, tensors.model, device)
        converter = TensorConverter(torch, device, tensors.all_outputs)
        return cls(torch, program, instance, tensors, converter, parameters)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Returns the wanted outputs of one call.

        Raises:
            InternalError: The model failed.
            InvalidArgumentError: An output contradicts the configuration.
        """
        make = self.converter.tensor
        with self._no_gradients():
            try:
                results = self._program.run([make(inputs[name]) for name in self._ordered])
            except Exception as error:
                raise execution_failure(error) from error
            arrays = self.converter.outputs(results, self._positions, wanted)
        if self._parameters.cleans_cache:
            self._torch.cuda.empty_cache()
        return arrays


class _CompiledProgram:
    """Code that AOTInductor compiled, without the Python part of the compiler."""

    def __init__(self, torch: Torch, path: Path, device: Any) -> None:
        os.environ[_CHECK_INPUTS] = "1"
        index = -1 if device is None or device.index is None else device.index
        # The public function imports the compiler, which takes seconds.
        loader = torch._C._aoti.AOTIModelPackageLoader  # noqa: SLF001  see above
        self._loader = loader(str(path), _MODEL_NAME, False, 1, index)
        self.input_spec, self.output_spec = self._loader.get_call_spec()

    def run(self, tensors: list[Any]) -> Sequence[Any]:
        results: Sequence[Any] = self._loader.run(tensors)
        return results


class _ExportedProgram:
    """A program that `torch.export.save` wrote; it runs operator by operator."""

    def __init__(self, torch: Torch, path: Path, device: Any) -> None:
        export = importlib.import_module("torch.export")
        with warnings.catch_warnings(), _without_pickles():
            # torch 2.11 reads constants from bytes, which it does not change, and warns of that.
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            program = export.load(str(path))
        if device is not None:
            passes = importlib.import_module("torch.export.passes")
            program = passes.move_to_device_pass(program, device)
        self._pytree = importlib.import_module("torch.utils._pytree")
        self._input_spec = program.call_spec.in_spec
        self.input_spec = self._pytree.treespec_dumps(program.call_spec.in_spec)
        self.output_spec = self._pytree.treespec_dumps(program.call_spec.out_spec)
        self._module = program.module()

    def run(self, tensors: list[Any]) -> Sequence[Any]:
        positional, keywords = self._pytree.tree_unflatten(tensors, self._input_spec)
        results: Sequence[Any] = self._pytree.tree_leaves(self._module(*positional, **keywords))
        return results


@contextlib.contextmanager
def _without_pickles() -> Iterator[None]:
    before = os.environ.get(_ONLY_TENSORS)
    os.environ[_ONLY_TENSORS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ONLY_TENSORS]
        else:
            os.environ[_ONLY_TENSORS] = before


def _load_program(torch: Torch, path: Path, model: str, device: Any) -> ExportedProgram:
    try:
        with zipfile.ZipFile(path) as archive:
            kind = package_kind(archive.namelist())
        if kind is PackageKind.COMPILED:
            return _CompiledProgram(torch, path, device)
        if kind is PackageKind.EXPORTED:
            return _ExportedProgram(torch, path, device)
    except Exception as error:
        raise InternalError(
            f"failed to load model '{model}': {error}{explain_file(path)}"
        ) from error
    raise InternalError(
        f"failed to load model '{model}': expected a package of AOTInductor or an archive of "
        f"torch.export.save in {path}"
    )
