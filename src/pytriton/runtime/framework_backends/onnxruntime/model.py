# SPDX-License-Identifier: Apache-2.0
"""Serves ONNX models: each instance has a session of ONNX Runtime.

A worker imports this file and calls its class TritonPythonModel, as it does with the model.py of a
user. The modules beside it decide what a configuration means.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.dtypes import BY_CONFIG_NAME, DataType
from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.runtime.framework_backends.batch_tensors import BatchTensors
from pytriton.runtime.framework_backends.onnxruntime.configuration import (
    OnnxSignature,
    check_config,
    complete,
    is_complete,
)
from pytriton.runtime.framework_backends.onnxruntime.session import (
    Session,
    available_providers,
    log_severity,
    open_session,
)
from pytriton.runtime.framework_backends.onnxruntime.settings import choose_providers, read_settings
from pytriton.runtime.framework_backends.shared import default_max_batch_size, is_utf8
from pytriton.runtime.pb_utils.batch import Batch

DEFAULT_NAME = "model.onnx"
# Attributes of a device in CUDA's driver: the two numbers of its compute capability.
_MAJOR, _MINOR = 75, 76


def find_model_file(config: Mapping[str, Any], directory: str, compute_capability: str = "") -> str:
    """Returns the path of a model's file; the file inside, if it is a folder with external data.

    Args:
        config: The model's configuration.
        directory: The folder of the version.
        compute_capability: That of the instance's GPU, such as "8.0"; empty for other instances.

    Raises:
        UnavailableError: There is no such file.
    """
    special = (config.get("cc_model_filenames") or {}).get(compute_capability)
    path = Path(directory, special or config.get("default_model_filename") or DEFAULT_NAME)
    if path.is_dir():
        path /= DEFAULT_NAME
    if not path.exists():
        raise UnavailableError(f"unable to find '{path}' for model instance '{config['name']}'")
    return str(path)


def read_compute_capability(device_id: int) -> str:
    """Returns the compute capability of a GPU, from CUDA's driver.

    Raises:
        UnavailableError: There is no driver, or it does not know the device.
    """
    device, numbers = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failure = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), device_id)
        for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
            failure = failure or driver.cuDeviceGetAttribute(
                ctypes.byref(number), attribute, device
            )
    except OSError as error:
        raise UnavailableError(f"unable to read the compute capability: {error}") from error
    if failure:
        raise UnavailableError(
            f"unable to read the compute capability of GPU {device_id}: CUDA error {failure}"
        )
    return ".".join(str(number.value) for number in numbers)


class TritonPythonModel:
    """An instance of an ONNX model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what the model's file says: inputs, outputs, and whether it can batch."""
        config = auto_complete_model_config.as_dict()
        if is_complete(config):
            pb_utils.Logger.log_info(
                f"skipping model configuration auto-complete for '{config['name']}': inputs and"
                " outputs already specified"
            )
            return auto_complete_model_config
        path = find_model_file(config, pb_utils.get_model_dir())
        groups = config.get("instance_group") or ()
        on_gpu = any(group.get("kind") == "KIND_GPU" for group in groups)
        session = _open(config, path, "GPU" if on_gpu else "CPU", device_id=0, is_optimised=False)
        default = default_max_batch_size(pb_utils.get_backend_config())
        for warning in complete(config, session.signature, default):
            pb_utils.Logger.log_warn(warning)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Make the session, and check that the configuration fits the model."""
        config = json.loads(args["model_config"])
        kind, device_id = args["model_instance_kind"], int(args["model_instance_device_id"])
        capability = ""
        if kind == "GPU" and config.get("cc_model_filenames"):
            capability = read_compute_capability(device_id)
        path = find_model_file(config, pb_utils.get_model_dir(), capability)
        session = _open(config, path, kind, device_id)
        check_config(config, session.signature)
        self._run = session.run
        self._tensors = OnnxTensors(config, session.signature)
        large_outputs = LargeOutputs(config, session.signature)
        self._allocate = large_outputs.allocate if large_outputs else None
        # Inputs that other models have on a GPU stay there, and so do outputs until they are sent.
        is_plain = not self._tensors.changes_inputs and not self._tensors.changes_outputs
        self.takes_gpu_arrays = kind == "GPU" and is_plain and session.takes_gpu_arrays
        if self.takes_gpu_arrays:
            self._run = functools.partial(_run_on_gpu, session, device_id)
            self._allocate = None

    def execute_batch(self, batch: Any) -> dict[str, Any]:
        """Run the session once for all requests.

        ONNX Runtime computes the whole graph, whichever outputs are wanted.
        """
        inputs, names = batch.inputs, batch.output_names
        tensors = self._tensors
        if tensors.changes_inputs:
            inputs = tensors.prepare(batch)
        places = None if self._allocate is None else self._allocate(batch)
        outputs = dict(zip(names, self._run(names, inputs, places), strict=True))
        return tensors.finish(outputs, batch) if tensors.changes_outputs else outputs


def _run_on_gpu(session: Session, device_id: int, names: Any, inputs: Any, places: None) -> Any:
    assert places is None, "outputs are on the GPU"
    return session.run_on_gpu(names, inputs, device_id)


def _open(
    config: dict[str, Any], path: str, kind: str, device_id: int, *, is_optimised: bool = True
) -> Session:
    settings = read_settings(config, pb_utils.get_backend_config())
    if not is_optimised:  # a session that is never run
        settings = dataclasses.replace(settings, graph_level="ORT_DISABLE_ALL")
    providers = choose_providers(config, kind, device_id, available_providers())
    return open_session(path, settings, providers, log_severity())


def decode_strings(array: NDArray[np.object_]) -> tuple[NDArray[np.object_], list[int]]:
    """Decode the elements of a tensor as UTF-8.

    ONNX Runtime would take `bytes` objects for their Python notation (b'...').

    Returns:
        The strings, and the indices of the elements that are not UTF-8, which are empty strings.
    """
    elements: list[Any] = array.ravel().tolist()
    wrong: list[int] = []
    try:
        strings = [element.decode() for element in elements]
    except UnicodeDecodeError:
        wrong = [index for index, element in enumerate(elements) if not is_utf8(element)]
        for index in wrong:
            elements[index] = b""
        strings = [element.decode() for element in elements]
    decoded = np.empty(len(strings), object)
    decoded[:] = strings
    return decoded.reshape(array.shape), wrong


def string_failures(
    name: str, wrong: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, InvalidArgumentError]]:
    """Yields the requests of a batch that `wrong` elements belong to, each with its error.

    Args:
        name: The input.
        wrong: Indices of elements in the whole batch, in ascending order.
        sizes: The number of elements of each request.
    """
    ends = list(accumulate(sizes))
    reported = -1
    for index in wrong:
        position = next(at for at, end in enumerate(ends) if index < end)
        if position != reported:
            reported = position
            element = index - (ends[position] - sizes[position])
            yield (
                position,
                InvalidArgumentError(
                    f"expected UTF-8 in input '{name}', because strings of ONNX Runtime have to be;"
                    f" element {element} is not"
                ),
            )


Arrays = dict[str, NDArray[Any]]


class OnnxTensors:
    """Converts the tensors of one model.

    Args:
        config: The model's configuration, which was checked.
        signature: The declared tensors of the model.

    Attributes:
        changes_inputs: Whether `prepare` has anything to do.
        changes_outputs: Whether `finish` has anything to do.
    """

    def __init__(self, config: Mapping[str, Any], signature: OnnxSignature) -> None:
        declared = {**signature.inputs, **signature.initializers}
        self._computed = BatchTensors(config)
        self._strings = [name for name, info in declared.items() if info.data_type == "TYPE_STRING"]
        # Without batching, a scalar has a dimension of 1 in the configuration.
        batches = config.get("max_batch_size", 0) > 0
        self._scalars = [name for name, info in declared.items() if not info.shape and not batches]
        self._scalar_dims = {
            tensor["name"]: tuple(tensor["dims"])
            for tensor in config["output"]
            if not batches and not signature.outputs[tensor["name"]].shape
        }
        self.changes_inputs = bool(self._strings or self._scalars or self._computed.has_inputs)
        self.changes_outputs = bool(self._scalar_dims or self._computed.has_outputs)

    def prepare(self, batch: Batch) -> Arrays:
        """Returns the inputs of the model; requests with strings that are not UTF-8 fail."""
        inputs = batch.inputs
        if self._computed.has_inputs:
            inputs = self._computed.prepare(inputs, batch.rows, batch.shapes)
        else:
            inputs = dict(inputs)
        for name in self._scalars:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        for name in self._strings:
            if name in inputs:
                inputs[name] = _decoded(name, inputs[name], batch)
        return inputs

    def finish(self, outputs: Arrays, batch: Batch) -> dict[str, Any]:
        """Returns the outputs that are sent."""
        for name, dims in self._scalar_dims.items():
            if name in outputs:
                outputs[name] = outputs[name].reshape(dims)
        if self._computed.has_outputs:
            return self._computed.scatter(outputs, batch.inputs, batch.rows, batch.shapes)
        return outputs


def _decoded(name: str, array: NDArray[Any], batch: Batch) -> NDArray[Any]:
    strings, wrong = decode_strings(array)
    if wrong:
        if name in batch.shapes:
            sizes = [prod(shape) for shape in batch.shapes[name]]
        else:
            total = sum(batch.rows)
            sizes = [array.size * rows // total for rows in batch.rows]
        for position, error in string_failures(name, wrong, sizes):
            batch.fail(position, error)
    return strings


LARGE_BYTES = 512 << 10


class LargeOutputs:
    """The outputs of one model whose shape is known before a run, and that may be large.

    Args:
        config: The model's configuration, which was checked.
        signature: The declared tensors of the model.
    """

    def __init__(self, config: Mapping[str, Any], signature: OnnxSignature) -> None:
        max_rows = config.get("max_batch_size", 0)
        self._is_batching = max_rows > 0
        self._outputs: dict[str, tuple[tuple[int, ...], DataType]] = {}
        if signature.takes_strings:
            return  # ONNX Runtime cannot bind these, so it cannot bind anything
        # The rows of a ragged batch's outputs are not those of its requests.
        scattered = {
            name for each in config.get("batch_output") or () for name in each["target_name"]
        }
        for name, info in signature.outputs.items():
            if name in scattered:
                continue
            shape = info.shape[1:] if self._is_batching else info.shape
            datatype = BY_CONFIG_NAME.get(info.data_type)
            # A string has no size that is known before, and neither has a dimension that varies.
            if datatype is None or not datatype.itemsize or -1 in shape:
                continue
            if max(max_rows, 1) * prod(shape) * datatype.itemsize >= LARGE_BYTES:
                self._outputs[name] = (shape, datatype)

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self._outputs)

    def allocate(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Returns memory for those outputs of a batch that are large, by name."""
        rows = (sum(batch.rows),) if self._is_batching else ()
        places = {}
        for name in batch.output_names:
            if name in self._outputs:
                shape, datatype = self._outputs[name]
                if prod(rows + shape) * datatype.itemsize >= LARGE_BYTES:
                    places[name] = batch.allocate(rows + shape, datatype.numpy)
        return places
