# SPDX-License-Identifier: Apache-2.0
"""The edge to ONNX Runtime: makes sessions, runs them, and translates their exceptions.

The package is imported when a session is made: a server without ONNX models does not need it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import BF16, BY_CONFIG_NAME, from_numpy
from pytriton.base.errors import InternalError, UnavailableError, UnsupportedError
from pytriton.base.log_switches import LogSwitches
from pytriton.runtime.framework_backends.onnxruntime.configuration import (
    OnnxSignature,
    read_signature,
)
from pytriton.runtime.framework_backends.onnxruntime.settings import CUDA, Provider, SessionSettings
from pytriton.runtime.framework_backends.shared import explain_file, import_wheel
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray, complete_array, wait_for
from pytriton.runtime.pb_utils.runtime import current_runtime

_FAILURE = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_FAIL = "1"  # ONNX Runtime's code for failures without a kind
_VERBOSE, _WARNING, _ERROR = 0, 2, 3  # severities
_BFLOAT16 = 16  # ONNX's number of the type
Arrays = Mapping[str, NDArray[Any]]


def available_providers() -> list[str]:
    """Returns the execution providers that the installed package has.

    Raises:
        UnavailableError: The package is not installed.
    """
    providers: list[str] = _load_package().get_available_providers()
    return providers


def log_severity() -> int:
    """Returns the lowest severity of ONNX Runtime's lines that the server's log wants."""
    switches = getattr(current_runtime(), "switches", LogSwitches())
    if switches.verbose:
        return _VERBOSE
    return _WARNING if switches.warning else _ERROR


def open_session(
    path: str, settings: SessionSettings, providers: Sequence[Provider], severity: int = _WARNING
) -> Session:
    """Make a session of a model's file.

    Args:
        path: The file. External data lies beside it.
        settings: How the session runs.
        providers: The execution providers, the preferred one first.
        severity: The lowest severity of the lines that ONNX Runtime writes.

    Raises:
        InternalError: ONNX Runtime refuses the model or the settings.
        UnavailableError: The package is not installed, or a provider cannot be used.
        UnsupportedError: An input or output is not a tensor, or the package cannot pass it.
    """
    ort = _load_package()
    names = [name for name, _ in providers]
    if CUDA in names and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # finds the libraries of CUDA that pip has installed
    try:
        session = ort.InferenceSession(
            path,
            _session_options(ort, settings, severity),
            providers=list(providers),
            enable_fallback=0,
        )
    except Exception as error:
        raise _failure(error, explain_file(path)) from error
    # A provider whose libraries cannot be loaded is left out with no more than a warning.
    missing = set(names).difference(session.get_providers())
    if missing:
        raise UnavailableError(f"onnxruntime could not load {', '.join(sorted(missing))}")
    run_options = None
    if settings.run_entries:
        run_options = ort.RunOptions()
        for key, value in settings.run_entries.items():
            run_options.add_run_config_entry(key, value)
    signature = read_signature(
        session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()
    )
    if signature.takes_strings and BF16.config_name in signature.data_types:
        raise UnsupportedError(
            "unable to load the model: it takes strings and has tensors of BF16, and the Python"
            " package of ONNX Runtime cannot pass both"
        )
    return Session(session, signature, run_options)


class Session:
    """A model that is ready to run.

    Attributes:
        signature: Its inputs and outputs.
    """

    def __init__(self, session: Any, signature: OnnxSignature, run_options: Any) -> None:
        self.signature = signature
        self._session = session
        self._run_options = run_options
        # ONNX Runtime takes and returns bfloat16 only by address.
        self._has_bfloat16 = BF16.config_name in signature.data_types

    def run_on_gpu(
        self, output_names: Sequence[str], inputs: Mapping[str, Any], device_id: int
    ) -> Sequence[GpuArray]:
        """Run the model with outputs that stay on a GPU, and inputs there or on the host.

        Neither strings nor bfloat16 can be bound so.

        Raises:
            InternalError: The run failed.
        """
        try:
            binding = self._session.io_binding()
            held = []
            for name, array in inputs.items():
                if isinstance(array, GpuArray):
                    wait_for(array)
                    place = (array.dtype.type, array.shape, array.address)
                    binding.bind_input(name, "cuda", array.device, *place)
                else:
                    held.append(np.require(array, requirements="C"))
                    binding.bind_cpu_input(name, held[-1])
            for name in output_names:
                binding.bind_output(name, "cuda", device_id)
            self._session.run_with_iobinding(binding, self._run_options)
            binding.synchronize_outputs()
            return [
                complete_array(value.data_ptr(), device_id, dtype, tuple(value.shape()), value)
                for name, value in zip(output_names, binding.get_outputs(), strict=True)
                for dtype in [BY_CONFIG_NAME[self.signature.outputs[name].data_type].numpy]
            ]
        except Exception as error:
            raise _failure(error) from error

    @property
    def takes_gpu_arrays(self) -> bool:
        """Whether `run_on_gpu` can run it."""
        return not self._has_bfloat16 and "TYPE_STRING" not in self.signature.data_types

    def run(
        self, output_names: Sequence[str], inputs: Arrays, places: Arrays | None = None
    ) -> Sequence[NDArray[Any]]:
        """Run the model; returns its outputs in the order of `output_names`.

        On the CPU neither inputs nor outputs are copied: ONNX Runtime reads contiguous arrays where
        they are, and its outputs are arrays over its memory. Strings are `str` objects.

        Args:
            output_names: The outputs.
            inputs: The inputs by name.
            places: Arrays for some of the outputs, by name, that the model has to write to. A model
                that takes strings cannot have any.

        Raises:
            InternalError: The run failed.
        """
        try:
            if places or self._has_bfloat16:
                return self._run_bound(output_names, inputs, places or {})
            outputs: list[NDArray[Any]] = self._session.run(output_names, inputs, self._run_options)
        except Exception as error:
            raise _failure(error) from error
        return outputs

    def _run_bound(
        self, output_names: Sequence[str], inputs: Arrays, places: Arrays
    ) -> Sequence[NDArray[Any]]:
        """Run the model with tensors by address. For small ones this takes 15 us more."""
        binding = self._session.io_binding()
        arrays = {name: np.require(array, requirements="C") for name, array in inputs.items()}
        for name, array in arrays.items():
            binding.bind_input(name, *_memory(array))
        for name in output_names:
            if name in places:
                binding.bind_output(name, *_memory(places[name]))
            else:
                binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, self._run_options)
        return [
            places[name] if name in places else self._array(name, value)
            for name, value in zip(output_names, binding.get_outputs(), strict=True)
        ]

    def _array(self, name: str, value: Any) -> NDArray[Any]:
        if self.signature.outputs[name].data_type == BF16.config_name:
            # Nothing but `value` keeps its memory alive, so this is a copy.
            raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
            array: NDArray[Any] = np.frombuffer(raw, BF16.numpy).reshape(value.shape())
        else:
            array = value.numpy()
        return array


def _memory(array: NDArray[Any]) -> tuple[str, int, Any, tuple[int, ...], int]:
    """Returns where an array is, as ONNX Runtime takes it: device, type, shape, and address."""
    kind = _BFLOAT16 if from_numpy(array.dtype) is BF16 else array.dtype.type
    return "cpu", 0, kind, array.shape, array.ctypes.data


def _load_package() -> Any:
    return import_wheel("onnxruntime", "onnxruntime", "onnxruntime")


def _session_options(ort: Any, settings: SessionSettings, severity: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = severity
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings.graph_level)
    modes = ort.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if settings.is_parallel else modes.ORT_SEQUENTIAL
    if settings.uses_global_pool:
        ort.set_global_thread_pool_sizes(settings.intra_op_threads, settings.inter_op_threads)
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = settings.intra_op_threads
        options.inter_op_num_threads = settings.inter_op_threads
    if settings.memory_arena is not None:
        options.enable_cpu_mem_arena = settings.memory_arena
    if settings.memory_pattern is not None:
        options.enable_mem_pattern = settings.memory_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.operator_libraries:
        options.register_custom_ops_library(library)
    return options


def _failure(error: Exception, explanation: str = "") -> InternalError:
    """Returns the error of Triton for an exception of ONNX Runtime."""
    match = _FAILURE.match(str(error))
    code, text = match.groups() if match is not None else (_FAIL, str(error))
    return InternalError(f"onnx runtime error {code}: {text}{explanation}")
