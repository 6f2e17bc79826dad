# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import pathlib
import subprocess
import sys

import c_python_backend_utils
import pytest
import triton_python_backend_utils as pb_utils

# What models import from either module of Triton's, and `get_backend_config` of ours.
UTILS = """
    InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory Tensor
    TritonError TritonModelException TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
    TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITON_STRING_TO_NUMPY deserialize_bytes_tensor
    get_backend_config
    get_input_config_by_name get_input_tensor_by_name get_model_dir get_output_config_by_name
    get_output_tensor_by_name is_model_ready load_model numpy_to_triton_type serialize_byte_tensor
    triton_string_to_numpy triton_to_numpy_type unload_model
    using_decoupled_model_transaction_policy
"""
NATIVE = """
    COUNTER GAUGE HISTOGRAM InferenceRequest InferenceResponse InferenceResponseSender
    InferenceTrace Logger MemoryType Metric MetricFamily MetricKind PreferredMemory
    ResponseIterator SharedMemory TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU Tensor
    TritonError TritonModelException is_model_ready load_model shared_memory unload_model
"""


@pytest.mark.parametrize(
    "module, names", [(pb_utils, UTILS), (c_python_backend_utils, NATIVE)], ids=["utils", "native"]
)
def test_module_has_the_names_that_models_import(module, names):
    assert sorted(module.__all__) == sorted(names.split())
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", [pb_utils, c_python_backend_utils])
def test_classes_and_functions_are_described(module):
    objects = [getattr(module, name) for name in module.__all__]
    described = [each for each in objects if inspect.isclass(each) or inspect.isfunction(each)]

    assert len(described) > 10
    assert [each for each in described if not inspect.getdoc(each)] == []


@pytest.mark.parametrize("module", [pb_utils, c_python_backend_utils])
def test_type_checkers_read_the_module(module):
    assert pathlib.Path(module.__file__).with_name("py.typed").exists()


def test_constants_have_tritons_values():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    assert pb_utils.TRITONSERVER_MEMORY_GPU.value == 0
    assert pb_utils.TRITONSERVER_MEMORY_CPU.value == 1


def test_shared_memory_never_runs_out():
    free = c_python_backend_utils.shared_memory.free_memory()

    assert free > 0
    assert c_python_backend_utils.shared_memory.free_memory() == free


def test_module_is_light_enough_for_every_worker():
    heavy = {"grpc", "google", "tritonclient", "uvloop", "ml_dtypes", "httptools"}
    code = "import sys, triton_python_backend_utils; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()

    assert {name.split(".")[0] for name in loaded} & heavy == set()
