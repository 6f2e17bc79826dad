# SPDX-License-Identifier: Apache-2.0
"""Every name that users of PyTriton import is where they import it from, with its value."""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import pytest

NAMES = {
    "pytriton": "__version__ client model_config triton",
    "pytriton.triton": "Triton RemoteTriton TritonBase TritonConfig TritonLifecyclePolicy "
    "DefaultTritonLifecyclePolicy VertextAILifecyclePolicy TritonSecurityConfig "
    "VALID_TRITON_ENDPOINTS DEFAULT_PROTECTED_ENDPOINTS TRITONSERVER_DIST_DIR",
    "pytriton.model_config": "DeviceKind DynamicBatcher ModelConfig QueuePolicy Tensor "
    "TimeoutAction",
    "pytriton.model_config.common": "DeviceKind DynamicBatcher QueuePolicy TimeoutAction "
    "WarmupInput ModelWarmup generate_warmup_data generate_warmup_requests",
    "pytriton.model_config.tensor": "Tensor",
    "pytriton.model_config.model_config": "ModelConfig",
    "pytriton.model_config.triton_model_config": "TritonModelConfig TensorSpec ResponseCache "
    "DeviceKind DynamicBatcher ModelWarmup",
    "pytriton.model_config.generator": "ModelConfigGenerator",
    "pytriton.model_config.parser": "ModelConfigParser",
    "pytriton.models.model": "_inject_triton_context",
    "pytriton.decorators": "batch sample group_by_keys group_by_values fill_optionals pad_batch "
    "first_value triton_context ConstantPadder TritonContext ModelConfigDict get_triton_context "
    "get_model_config convert_output get_inference_request_batch_size InputNames InferenceRequest "
    "InferenceRequests InferenceResult InferenceResults",
    "pytriton.proxy.types": "Request Response Requests Responses ResponsesOrError "
    "ResponsesNoneOrError Scope",
    "pytriton.proxy.telemetry": "set_telemetry_tracer get_telemetry_tracer traced_span "
    "parse_trace_config build_proxy_tracer_from_triton_config start_span_from_span "
    "start_span_from_remote get_span_dict end_span raise_if_no_telemetry TracableModel",
    "pytriton.exceptions": "PyTritonError PyTritonValidationError PyTritonInvalidOperationError "
    "PyTritonBadParameterError PyTritonModelConfigError PyTritonUnrecoverableError "
    "PyTritonRuntimeError",
    "pytriton.client": "ModelClient AsyncioModelClient FuturesModelClient DecoupledModelClient "
    "AsyncioDecoupledModelClient",
    "pytriton.client.client": "BaseModelClient ModelClient AsyncioModelClient FuturesModelClient "
    "DecoupledModelClient AsyncioDecoupledModelClient",
    "pytriton.client.exceptions": "PyTritonClientError PyTritonClientValueError "
    "PyTritonClientInvalidUrlError PyTritonClientTimeoutError PyTritonClientModelUnavailableError "
    "PyTritonClientClosedError PyTritonClientModelDoesntSupportBatchingError "
    "PyTritonClientInferenceServerError PyTritonClientQueueFullError",
    "pytriton.client.warnings": "PyTritonWarning NotSupportedTimeoutWarning",
    "pytriton.client.auth": "create_auth_headers extract_access_token_from_headers",
    "pytriton.client.utils": "TritonUrl create_client_from_url wait_for_server_ready "
    "wait_for_model_ready get_model_config get_model_state ModelState parse_http_response "
    "parse_grpc_response LATEST_MODEL_VERSION",
    "pytriton.client.asyncio_utils": "asyncio_wait_for_model_ready asyncio_wait_for_server_ready "
    "asyncio_get_model_config asyncio_get_model_state asyncio_wait_for_model_status_loaded",
    "pytriton.constants": "PYTRITON_HOME TRITON_PYTHON_BACKEND_INTERPRETER_DIRNAME",
    "pytriton.utils.workspace": "Workspace CleanupWarning",
    "pytriton.utils.dataclasses": "kwonly_dataclass",
    "pytriton.utils.distribution": "get_root_module_path is_editable_install",
    "pytriton.utils.endpoint_utils": "get_endpoint",
    "pytriton.utils.logging": "silence_3rd_party_loggers",
    "pytriton.tools.check.utils": "ScriptThread ProcessMonitoring ProcessMonitoringThread "
    "TestMonitoringContext find_free_port DEFAULT_LOG_FORMAT get_current_container_version "
    "verify_docker_image_in_readme_same_as_tested search_warning_on_too_verbose_log_level",
}

VALUES = {
    "pytriton.client.client.DEFAULT_INFERENCE_TIMEOUT_S": 60.0,
    "pytriton.constants.CREATE_TRITON_CLIENT_TIMEOUT_S": 10,
    "pytriton.constants.DEFAULT_GRPC_PORT": 8001,
    "pytriton.constants.DEFAULT_HTTP_PORT": 8000,
    "pytriton.constants.DEFAULT_METRICS_PORT": 8002,
    "pytriton.constants.DEFAULT_TRITON_STARTUP_TIMEOUT_S": 120,
    "pytriton.constants.TRITON_CONTEXT_FIELD_NAME": "triton_context",
    "pytriton.constants.TRITON_LOCAL_IP": "127.0.0.1",
    "pytriton.triton.GROWTH_BACKEND_SHM_SIZE": 1048576,
    "pytriton.triton.INITIAL_BACKEND_SHM_SIZE": 4194304,
    "pytriton.triton.MODEL_CONFIG_URL": "/v2/models/{model_name}/config/",
    "pytriton.triton.MODEL_INFER_URL": "/v2/models/{model_name}/infer/",
    "pytriton.triton.MODEL_READY_URL": "/v2/models/{model_name}/ready/",
    "pytriton.triton.MODEL_URL": "/v2/models/{model_name}",
    "pytriton.triton.MONITORING_PERIOD_S": 10.0,
    "pytriton.triton.TRITON_ACCESS_HEADER": "triton-access-token",
    "pytriton.triton.WAIT_FORM_MODEL_TIMEOUT_S": 60.0,
}

# Positional arguments in their order, as users write calls without names; the rest by name.
SIGNATURES = {
    "pytriton.triton.Triton": "* config workspace triton_lifecycle_policy security_config",
    "pytriton.triton.Triton.bind": "self model_name infer_func inputs outputs model_version config "
    "strict trace_config * instances",
    "pytriton.triton.Triton.serve": "self monitoring_period_s",
    "pytriton.triton.RemoteTriton": "url workspace access_token",
    "pytriton.triton.TritonLifecyclePolicy": "launch_triton_on_startup local_model_store",
    "pytriton.triton.TritonSecurityConfig": "access_token restricted_endpoints",
    "pytriton.model_config.Tensor": "shape dtype name optional",
    "pytriton.model_config.ModelConfig": "batching max_batch_size batcher response_cache decoupled "
    "model_warmup sequence rate_limiter openai",  # the last three are ours
    "pytriton.model_config.DynamicBatcher": "max_queue_delay_microseconds preferred_batch_size "
    "preserve_ordering priority_levels default_priority_level default_queue_policy "
    "priority_queue_policy",
    "pytriton.model_config.QueuePolicy": "timeout_action default_timeout_microseconds "
    "allow_timeout_override max_queue_size",
    "pytriton.model_config.common.WarmupInput": "dtype shape zero_data random_data input_data_file",
    "pytriton.model_config.common.ModelWarmup": "name batch_size inputs count",
    "pytriton.proxy.types.Request": "data parameters span requested_output_names",
    "pytriton.proxy.types.Response": "data",
    "pytriton.decorators.group_by_values": "*keys pad_fn",
    "pytriton.decorators.fill_optionals": "**defaults",
    "pytriton.decorators.first_value": "*keys squeeze_single_values strict",
    "pytriton.decorators.ConstantPadder": "pad_value",
    "pytriton.client.ModelClient": "url model_name model_version * lazy_init init_timeout_s "
    "inference_timeout_s model_config ensure_model_is_ready access_token",
    "pytriton.client.FuturesModelClient": "url model_name model_version * max_workers "
    "max_queue_size non_blocking init_timeout_s inference_timeout_s access_token",
    "pytriton.client.ModelClient.infer_sample": "self *inputs parameters headers **named_inputs",
}


def found(path: str) -> object:
    """What lies at a dotted path: a module's member, or a member of that."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(found(module), name)


@pytest.mark.parametrize("module", NAMES)
def test_names_are_imported_from(module):
    namespace = importlib.import_module(module)

    assert [name for name in NAMES[module].split() if not hasattr(namespace, name)] == []


@pytest.mark.parametrize("path", VALUES)
def test_value_is_the_usual_one(path):
    assert found(path) == VALUES[path]


def described(signature: inspect.Signature) -> str:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words = []
    for parameter in signature.parameters.values():
        by_name = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if by_name and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(marks.get(parameter.kind, "") + parameter.name)
    return " ".join(words)


@pytest.mark.parametrize("path", SIGNATURES)
def test_arguments_have_the_usual_names_and_order(path):
    assert described(inspect.signature(found(path))) == SIGNATURES[path]


@pytest.mark.parametrize("path", [path for path in SIGNATURES if "model_config." in path])
def test_settings_of_a_model_are_dataclasses(path):
    assert dataclasses.is_dataclass(found(path))
