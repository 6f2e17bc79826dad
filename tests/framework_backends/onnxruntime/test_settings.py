# SPDX-License-Identifier: Apache-2.0
"""Parameters of models and of the backend, and what becomes of them in a session."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.runtime.framework_backends.onnxruntime.settings import (
    SessionSettings,
    choose_providers,
    read_settings,
)

ALL = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider"]
CPU = ("CPUExecutionProvider", {})


def parameters(**values):
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def settings(backend=None, **values):
    return read_settings({"name": "m", **parameters(**values)}, backend or {})


def accelerated(kind="GPU", available=ALL, model=None, **lists):
    accelerators = {
        f"{device}_execution_accelerator": [
            {"name": name, "parameters": options} for name, options in entries
        ]
        for device, entries in lists.items()
    }
    config = {"name": "m", **parameters(**(model or {}))}
    config["optimization"] = {"execution_accelerators": accelerators}
    return choose_providers(config, kind, 1, [*available, "CPUExecutionProvider"])


def test_defaults_are_those_of_triton():
    found = read_settings({"name": "m"}, {})

    assert found == SessionSettings(
        session_entries={"session.use_device_allocator_for_initializers": "0"}
    )


@pytest.mark.parametrize(
    "level, expected",
    [
        (-1, "ORT_ENABLE_BASIC"),
        (0, "ORT_ENABLE_ALL"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (3, "ORT_ENABLE_ALL"),
    ],
)
def test_level_of_optimisation(level, expected):
    config = {"optimization": {"graph": {"level": level}}}

    assert read_settings(config, {}).graph_level == expected


def test_parameters_of_threads_and_memory():
    found = settings(
        execution_mode="1",
        intra_op_thread_count="3",
        inter_op_thread_count="2 threads",
        enable_mem_arena="OFF",
        enable_mem_pattern="True",
        unknown="x",
    )

    assert found.is_parallel
    assert (found.intra_op_threads, found.inter_op_threads) == (3, 2)
    assert (found.memory_arena, found.memory_pattern) == (False, True)


def test_negative_number_of_threads_is_the_default():
    assert settings(intra_op_thread_count="-2").intra_op_threads == 0


def test_entries_of_sessions_and_runs():
    found = settings(
        **{
            "session.use_device_allocator_for_initializers": "1",
            "memory.enable_memory_arena_shrinkage": "cpu:0",
        }
    )

    assert found.session_entries == {"session.use_device_allocator_for_initializers": "1"}
    assert found.run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}


def test_libraries_of_operators():
    config = {"model_operations": {"op_library_filename": ["a.so", "b.so"]}}

    assert read_settings(config, {}).operator_libraries == ("a.so", "b.so")


def test_global_pool_has_the_threads_of_the_backend():
    backend = {"enable-global-threadpool": "1", "intra_op_thread_count": "5"}
    found = settings(backend, intra_op_thread_count="2", inter_op_thread_count="2")

    assert found.uses_global_pool
    assert (found.intra_op_threads, found.inter_op_threads) == (5, 0)


def test_threads_of_the_backend_count_only_with_a_global_pool():
    assert settings({"intra_op_thread_count": "5"}).intra_op_threads == 0


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("execution_mode", "2", "execution_mode must be 0 (sequential) or 1 (parallel), got '2'"),
        ("intra_op_thread_count", "x", "failed to convert 'x' to integral number"),
        (
            "inter_op_thread_count",
            "9999999999",
            "failed to convert '9999999999' to integral number",
        ),
        ("enable_mem_arena", "yes", "failed to convert 'yes' to boolean"),
        ("enable_mem_pattern", "", "failed to convert '' to boolean"),
    ],
)
def test_wrong_values_are_refused(name, value, text):
    with pytest.raises(InvalidArgumentError) as caught:
        settings(**{name: value})

    assert caught.value.message == text


@pytest.mark.parametrize("kind", ["CPU", "MODEL"])
def test_instances_that_are_not_on_a_gpu_ignore_its_accelerators(kind):
    assert accelerated(kind, gpu=[("nonsense", {})]) == [CPU]


def test_openvino_is_the_accelerator_of_the_cpu():
    assert accelerated("CPU", cpu=[("openvino", {})]) == [
        ("OpenVINOExecutionProvider", {"device_type": "CPU"}),
        CPU,
    ]


@pytest.mark.parametrize(
    "kind, lists, available, name",
    [
        ("CPU", {"cpu": [("openvino", {})]}, [], "openvino"),
        ("CPU", {"cpu": [("mkl", {})]}, ALL, "mkl"),
        ("GPU", {"cpu": [("mkl", {})]}, ALL, "mkl"),
        ("GPU", {"gpu": [("tensorrt", {})]}, ["CUDAExecutionProvider"], "tensorrt"),
        ("GPU", {"gpu": [("rocm", {})]}, ALL, "rocm"),
    ],
)
def test_accelerator_that_is_not_there_is_refused(kind, lists, available, name):
    with pytest.raises(InvalidArgumentError) as caught:
        accelerated(kind, available, **lists)

    assert caught.value.message == f"unknown Execution Accelerator '{name}' is requested"


def test_gpu_instance_needs_a_package_that_runs_on_gpus():
    with pytest.raises(UnavailableError, match=r"no CUDAExecutionProvider, only CPU.*KIND_CPU"):
        accelerated("GPU", [])


def test_gpu_instance_runs_on_its_device():
    (name, options), last = accelerated("GPU")

    assert (name, last) == ("CUDAExecutionProvider", CPU)
    assert options == {
        "device_id": "1",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "gpu_mem_limit": "18446744073709551615",
        "arena_extend_strategy": "kNextPowerOfTwo",
        "do_copy_in_default_stream": "1",
    }


def test_providers_have_the_order_of_the_accelerators():
    found = accelerated(gpu=[("tensorrt", {}), ("cuda", {"use_tf32": "0"})], cpu=[("openvino", {})])

    assert [name for name, _ in found] == [*ALL, "CPUExecutionProvider"]
    assert found[1][1]["use_tf32"] == "0"


def test_parameters_of_the_model_overwrite_those_of_the_accelerator():
    given = {"gpu_mem_limit": "100", "cudnn_conv_algo_search": "DEFAULT"}
    (_, options), _ = accelerated(gpu=[("cuda", given)], model={"gpu_mem_limit": "200"})

    assert options["gpu_mem_limit"] == "200"
    assert options["cudnn_conv_algo_search"] == "DEFAULT"


def test_options_of_tensorrt_are_translated():
    given = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1024",
        "trt_engine_cache_enable": "true",
        "trt_dla_core": "2",
        "trt_engine_cache_path": "/cache",
    }
    (name, options), *_ = accelerated(gpu=[("tensorrt", given)])

    assert name == "TensorrtExecutionProvider"
    assert options == {
        "device_id": "1",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1024",
        "trt_engine_cache_enable": "1",
        "trt_dla_core": "2",
        "trt_engine_cache_path": "/cache",
    }


@pytest.mark.parametrize(
    "accelerator, options, text",
    [
        ("tensorrt", {"precision_mode": "FP8"}, "unsupported precision mode 'FP8' is requested"),
        (
            "tensorrt",
            {"q": "1"},
            "unknown parameter 'q' is provided for TensorRT Execution Accelerator",
        ),
        ("tensorrt", {"trt_dla_enable": "2"}, "failed to convert '2' to boolean"),
        ("tensorrt", {"trt_dla_core": "x"}, "failed to convert 'x' to integral number"),
        ("cuda", {"do_copy_in_default_stream": "x"}, "failed to convert 'x' to boolean"),
        ("cuda", {"use_ep_level_unified_stream": "2"}, "failed to convert '2' to boolean"),
    ],
)
def test_wrong_options_are_refused(accelerator, options, text):
    with pytest.raises(InvalidArgumentError) as caught:
        accelerated(gpu=[(accelerator, options)])

    assert caught.value.message == text
