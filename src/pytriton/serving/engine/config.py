# SPDX-License-Identifier: Apache-2.0
"""Reads a model's configuration, fills in defaults, and prints it as Triton does.

Inside the engine a configuration is Triton's `ModelConfig` message; the hot path reads a
`ModelSpec` instead, which is made here. All functions raise InvalidArgumentError for values that
cannot be used. The rules are in `serving.engine.config_rules`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from google.protobuf import json_format, text_format

from pytriton.base import dtypes
from pytriton.base.documentation import Documentation, read_docstring
from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.errors import InvalidArgumentError, sendable_text
from pytriton.base.model_spec import (
    BatcherSpec,
    ModelSpec,
    ModelTensor,
    OpenAISpec,
    QueuePolicySpec,
    QueueTimeoutAction,
    Reshape,
)
from pytriton.base.openai_routes import (
    ROUTES_PARAMETER,
    TEMPLATE_PARAMETER,
    OpenAI,
    read_openai_parameters,
)
from pytriton.base.protos import model_config_pb2
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.serving.engine.config_rules import ENSEMBLE, histogram_buckets, validate_config
from pytriton.serving.engine.sequence.sequence_config import sequence_spec

__all__ = [
    "config_from_dict",
    "config_from_text",
    "config_to_json",
    "normalise_config",
    "spec_from_config",
    "validate_config",
]

DESCRIPTION_PARAMETER = "description"  # of a model, for people
_TWO_CPU_INSTANCES = frozenset({"onnxruntime", "tensorflow"})  # backends with this default
_DEFAULT_SEQUENCE_IDLE_US = 1_000_000
# Triton prints 64-bit integers as numbers, except for these three.
_PRINTED_AS_STRINGS = frozenset(
    {
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelSequenceBatching.InitialState.dims",
    }
)


def config_from_dict(values: Mapping[str, Any]) -> Any:
    """Read a configuration in protobuf's JSON form, as the load request and `bind` send it.

    The message is neither validated nor normalised.
    """
    if not isinstance(values, Mapping):
        raise InvalidArgumentError(
            f"model configuration must be a JSON object, got {type(values).__name__}"
        )
    try:
        return json_format.ParseDict(dict(values), model_config_pb2.ModelConfig())
    except (json_format.ParseError, ValueError) as exc:
        problem = sendable_text(str(exc))
        raise InvalidArgumentError(f"model configuration is not valid: {problem}") from exc
    except SystemError as exc:  # from protobuf, for names that UTF-8 cannot encode
        problem = sendable_text(str(exc.__cause__))
        raise InvalidArgumentError(f"model configuration is not valid: {problem}") from exc


def config_from_text(text: str, source: str) -> Any:
    """Read a configuration in protobuf's text form, the format of `config.pbtxt`.

    The message is neither validated nor normalised; `source` is the path for error messages.
    """
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        line, column = exc.GetLine(), exc.GetColumn()
        problem = str(exc)
        if line is not None:
            # The notation of compilers; editors can jump to such a position.
            source = f"{source}:{line}:{column}"
            problem = problem.removeprefix(f"{line}:{column} : ")
        raise InvalidArgumentError(
            f"failed to read text proto from {source}: {problem}{hint(problem)}"
        ) from exc
    except ValueError as exc:  # from protobuf, for numbers that are not of the type of their field
        raise InvalidArgumentError(f"failed to read text proto from {source}: {exc}") from exc


def normalise_config(config: Any, gpu_ids: Sequence[int] = (), *, prefers_gpus: bool = True) -> Any:
    """Fill in the defaults that Triton fills in.

    `prefers_gpus` says whether instances are on GPUs if the configuration does not say it.
    """
    normal = model_config_pb2.ModelConfig()
    normal.CopyFrom(config)
    if normal.version_policy.WhichOneof("policy_choice") is None:
        normal.version_policy.latest.num_versions = 1
    if normal.platform == ENSEMBLE:
        normal.model_transaction_policy.SetInParent()
        return normal
    for pinned in ("input_pinned_memory", "output_pinned_memory"):
        if not normal.optimization.HasField(pinned):
            getattr(normal.optimization, pinned).enable = True
    if normal.backend == "python" and not normal.default_model_filename:
        normal.default_model_filename = "model.py"
    _normalise_scheduling(normal)
    _normalise_instance_groups(normal, gpu_ids, prefers_gpus=prefers_gpus)
    return normal


def _normalise_scheduling(config: Any) -> None:
    batcher = None
    if config.HasField("dynamic_batching"):
        batcher = config.dynamic_batching
    elif config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        if not sequence.max_sequence_idle_microseconds:
            sequence.max_sequence_idle_microseconds = _DEFAULT_SEQUENCE_IDLE_US
        if sequence.HasField("oldest"):
            batcher = sequence.oldest
    if batcher is not None and not batcher.preferred_batch_size and config.max_batch_size > 0:
        batcher.preferred_batch_size.append(config.max_batch_size)


def _normalise_instance_groups(config: Any, gpu_ids: Sequence[int], *, prefers_gpus: bool) -> None:
    kinds = model_config_pb2.ModelInstanceGroup
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == kinds.KIND_AUTO:
            group.kind = kinds.KIND_GPU if gpu_ids and prefers_gpus else kinds.KIND_CPU
        if group.count < 1:
            has_two = group.kind == kinds.KIND_CPU and config.backend in _TWO_CPU_INSTANCES
            group.count = 2 if has_two else 1
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(gpu_ids)


def spec_from_config(
    config: Any,
    version: int,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    initial_states: Mapping[str, bytes] | None = None,
    namespace: str = "",
) -> ModelSpec:
    """Make the specification by which the engine serves a version of a model.

    `config` is normalised and validated. `labels` are the names of classes by output,
    `initial_states` the contents of the files of initial states by the input of the state.
    """
    scheduler = config.WhichOneof("scheduling_choice")
    has_sequences = scheduler == "sequence_batching"
    batches = config.max_batch_size > 0
    inputs = _tensor_specs(config.input, batches=batches, is_input=True)
    outputs = _tensor_specs(config.output, batches=batches, is_input=False)
    return ModelSpec(
        name=config.name,
        version=version,
        platform=config.platform or config.backend,
        max_batch_size=config.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        required_inputs=frozenset(name for name, spec in inputs.items() if not spec.optional),
        batcher=_scheduling(config, scheduler),
        decoupled=config.model_transaction_policy.decoupled,
        response_cache=config.response_cache.enable,
        iterative=has_sequences and config.sequence_batching.iterative_sequence,
        sequence=sequence_spec(config, initial_states or {}) if has_sequences else None,
        labels=dict(labels or {}),
        metric_tags=dict(config.metric_tags),
        histogram_buckets=histogram_buckets(config),
        openai=openai_spec(config, inputs, outputs),
        gpu=_only_gpu(config),
        namespace=namespace,
        is_idempotent=is_idempotent(config),
        no_instance_timeout_s=no_instance_timeout_s(config),
        documentation=_documentation(config),
    )


def _documentation(config: Any) -> Documentation:
    """Returns what the parameter `description` of a configuration says."""
    if DESCRIPTION_PARAMETER not in config.parameters:
        return Documentation()
    return read_docstring(config.parameters[DESCRIPTION_PARAMETER].string_value)


def _only_gpu(config: Any) -> int | None:
    gpus = {gpu for group in config.instance_group for gpu in group.gpus or (None,)}
    return gpus.pop() if len(gpus) == 1 else None


def _scheduling(config: Any, scheduler: str | None) -> BatcherSpec | None:
    if scheduler in (None, "ensemble_scheduling"):
        return None
    if scheduler == "dynamic_batching":
        return _batcher_spec(config.dynamic_batching)
    if not config.sequence_batching.iterative_sequence:
        return None
    # An iterative sequence has one request; each of its executions may share a batch with others.
    choice = config.sequence_batching.WhichOneof("strategy_choice") or "direct"
    strategy = getattr(config.sequence_batching, choice)
    return BatcherSpec(
        preferred_batch_sizes=(max(config.max_batch_size, 1),),
        max_queue_delay_us=strategy.max_queue_delay_microseconds,
    )


def _tensor_specs(
    tensors: Iterable[Any], *, batches: bool, is_input: bool
) -> dict[str, ModelTensor]:
    specs = {}
    for tensor in tensors:
        dims = tuple(tensor.dims)
        specs[tensor.name] = ModelTensor(
            name=tensor.name,
            dtype=BY_NUMBER[tensor.data_type],
            dims=dims,
            shape=(-1, *dims) if batches else dims,
            optional=getattr(tensor, "optional", False),  # outputs have no such field
            has_variable_dims=-1 in dims,
            label_filename=getattr(tensor, "label_filename", ""),  # nor inputs this one
            reshape=_reshape(tensor, is_input=is_input),
            is_ragged=batches and getattr(tensor, "allow_ragged_batch", False),
        )
    return specs


def _reshape(tensor: Any, *, is_input: bool) -> Reshape | None:
    dims, shape = tuple(tensor.dims), tuple(tensor.reshape.shape)
    if not tensor.HasField("reshape") or dims == shape:
        return None
    return Reshape(dims, shape) if is_input else Reshape(shape, dims)


def _batcher_spec(batching: Any) -> BatcherSpec:
    return BatcherSpec(
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy_spec(batching.default_queue_policy),
        queue_policies={
            level: _queue_policy_spec(policy)
            for level, policy in batching.priority_queue_policy.items()
        },
    )


def _queue_policy_spec(policy: Any) -> QueuePolicySpec:
    return QueuePolicySpec(
        timeout_action=QueueTimeoutAction(policy.timeout_action),
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def config_to_json(config: Any) -> bytes:
    """Print the configuration as Triton's HTTP endpoint does.

    protobuf's own printer writes 64-bit integers as strings, and its option for printing defaults
    has another name in each major version, so this function iterates over the fields itself.
    """
    return orjson.dumps(_message_to_dict(config))


def _message_to_dict(message: Any) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_repeated(field):
            members[field.name] = _repeated_to_plain(field, value)
        elif not field.has_presence or message.HasField(field.name):
            members[field.name] = _value_to_plain(field, value)
    return members


def _is_repeated(field: Any) -> bool:
    # protobuf 6 deprecates `label`; older versions have only that.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _repeated_to_plain(field: Any, value: Any) -> dict[str, Any] | list[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        element = field.message_type.fields_by_name["value"]
        return {str(key): _value_to_plain(element, value[key]) for key in sorted(value)}
    return [_value_to_plain(field, element) for element in value]


def _value_to_plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message_to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        return float(str(np.float32(value))) if field.type == field.TYPE_FLOAT else value
    return str(value) if field.full_name in _PRINTED_AS_STRINGS else value


_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\w+)')
_CUTOFF = 0.75  # names that are less alike are no misspellings


def hint(problem: str) -> str:
    """Returns the sentence that helps with a problem that protobuf names; "" if there is none."""
    pool: Any = model_config_pb2.DESCRIPTOR.pool
    if found := _UNKNOWN_FIELD.search(problem):
        fields = list(pool.FindMessageTypeByName(found[1]).fields_by_name)
        near = difflib.get_close_matches(found[2], fields, n=1, cutoff=_CUTOFF)
        return f' Did you mean "{near[0]}"?' if near else ""
    if found := _UNKNOWN_VALUE.search(problem):
        values = pool.FindEnumTypeByName(found[1]).values_by_name
        names = [name for name in values if not name.endswith("_INVALID")]
        return f" Expected one of {', '.join(names)}."
    return ""


IDEMPOTENT_PARAMETER = "IDEMPOTENT"
NO_INSTANCE_PARAMETER = "RAY_NO_INSTANCE_TIMEOUT_S"

_ANSWERS = {"true": True, "false": False}


def is_idempotent(config: Any) -> bool:
    """Returns whether requests may run again if their instance is lost before it answers."""
    if IDEMPOTENT_PARAMETER not in config.parameters:
        return False
    text = config.parameters[IDEMPOTENT_PARAMETER].string_value
    answer = _ANSWERS.get(text.strip().lower())
    if answer is None:
        raise InvalidArgumentError(
            f"expected 'true' or 'false' as parameter {IDEMPOTENT_PARAMETER} of model "
            f"'{config.name}', got '{text}'"
        )
    if answer and config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            f"parameter {IDEMPOTENT_PARAMETER} of model '{config.name}' cannot be 'true': its "
            "requests belong to sequences, and the state of a sequence ends with its instance"
        )
    return answer


def no_instance_timeout_s(config: Any) -> float:
    """Returns how long requests wait while a model has no instance; 0: as long as it takes."""
    return seconds_parameter(config, NO_INSTANCE_PARAMETER, 0.0)


def seconds_parameter(config: Any, name: str, default_s: float) -> float:
    """Returns the seconds that a parameter of a model says."""
    if name not in config.parameters:
        return default_s
    text = config.parameters[name].string_value
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < math.inf:
        raise InvalidArgumentError(
            f"expected a number of seconds as parameter {name} of model '{config.name}', "
            f"got '{text}'"
        )
    return seconds


MESSAGES = "messages"
PROMPTS = ("prompt", "text_input", "text", "input")
TEXTS = ("text", "text_output", "output")
EMBEDDINGS = ("embedding", "embeddings")

_TEXT_TYPES = frozenset({dtypes.BYTES})
_FLOAT_TYPES = frozenset({dtypes.FP16, dtypes.BF16, dtypes.FP32, dtypes.FP64})


def openai_spec(
    config: Any, inputs: Mapping[str, ModelTensor], outputs: Mapping[str, ModelTensor]
) -> OpenAISpec | None:
    """Returns which routes serve a model, and by which tensors; None if it has not opted in."""
    if ROUTES_PARAMETER not in config.parameters:
        return None
    parameters = {
        key: config.parameters[key].string_value
        for key in (ROUTES_PARAMETER, TEMPLATE_PARAMETER)
        if key in config.parameters
    }
    try:
        openai = read_openai_parameters(parameters)
    except PyTritonBadParameterError as error:
        raise InvalidArgumentError(
            f"parameter '{ROUTES_PARAMETER}' of model '{config.name}': {error}"
        ) from error
    assert openai is not None
    required = {name: tensor for name, tensor in inputs.items() if not tensor.optional}
    spec = OpenAISpec(
        chat=openai.chat,
        completions=openai.completions,
        embeddings=openai.embeddings,
        template=openai.template,
        messages=_named(inputs, (MESSAGES,), _TEXT_TYPES),
        prompt=_named(inputs, PROMPTS, _TEXT_TYPES) or _only(required, _TEXT_TYPES, MESSAGES),
        text=_named(outputs, TEXTS, _TEXT_TYPES) or _only(outputs, _TEXT_TYPES),
        embedding=_named(outputs, EMBEDDINGS, _FLOAT_TYPES) or _only(outputs, _FLOAT_TYPES),
    )
    problem = _problem(openai, spec)
    if problem:
        raise InvalidArgumentError(f"model '{config.name}' cannot serve OpenAI's routes: {problem}")
    return spec


def _named(
    tensors: Mapping[str, ModelTensor],
    names: Sequence[str],
    types: frozenset[dtypes.DataType],
) -> str:
    """Returns the first of these names that a tensor of a type has; empty if there is none."""
    return next((each for each in names if each in tensors and tensors[each].dtype in types), "")


def _only(
    tensors: Mapping[str, ModelTensor], types: frozenset[dtypes.DataType], other: str = ""
) -> str:
    """Returns the name of the only tensor of a type; empty if there are none or several."""
    names = [name for name, each in tensors.items() if each.dtype in types and name != other]
    return names[0] if len(names) == 1 else ""


def _problem(openai: OpenAI, spec: OpenAISpec) -> str:
    if openai.chat and not (spec.messages or spec.prompt):
        return f"chat expects an input {MESSAGES} or {' or '.join(PROMPTS)} of strings, got none"
    if openai.completions and not (spec.messages or spec.prompt):
        return (
            f"completions expect an input {' or '.join(PROMPTS)} or {MESSAGES}, or one required "
            "input, of strings, got none"
        )
    if openai.embeddings and not spec.prompt:
        return (
            f"embeddings expect an input {' or '.join(PROMPTS)}, or one required input, of "
            "strings, got none"
        )
    if (openai.chat or openai.completions) and not spec.text:
        return (
            f"chat and completions expect an output {' or '.join(TEXTS)}, or one output, of "
            "strings, got none"
        )
    if openai.embeddings and not spec.embedding:
        return (
            f"embeddings expect an output {' or '.join(EMBEDDINGS)}, or one output, of floats, "
            "got none"
        )
    return ""
