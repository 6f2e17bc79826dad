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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton.base.errors import UnavailableError
from pytriton.runtime.framework_backends.onnxruntime.configuration import (
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
from pytriton.runtime.framework_backends.onnxruntime.tensors import LargeOutputs, OnnxTensors
from pytriton.runtime.framework_backends.shared import default_max_batch_size

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
