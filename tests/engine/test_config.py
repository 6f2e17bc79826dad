# SPDX-License-Identifier: Apache-2.0
"""Reading, normalising and printing model configurations; the JSON was recorded from Triton."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.model_spec import QueuePolicySpec, QueueTimeoutAction, Reshape
from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.config import (
    config_from_dict,
    config_from_text,
    config_to_json,
    normalise_config,
    spec_from_config,
    validate_config,
)

INPUT = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]'
OUTPUT = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]'
PYTHON = 'name: "m" backend: "python"'
INPUT_JSON = (
    '"input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1],'
    '"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,'
    '"is_non_linear_format_io":false}],'
)
OUTPUT_JSON = (
    '"output":[{"name":"y","data_type":"TYPE_FP32","dims":[-1],"label_filename":"",'
    '"is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
)
OPTIMIZATION_JSON = (
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,'
    '"eager_batching":false},'
)
GROUP_JSON = '"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}'


def normal(text: str, gpu_ids: tuple[int, ...] = ()):
    return normalise_config(config_from_text(text, "config.pbtxt"), gpu_ids)


def test_minimal_config_prints_as_triton_prints_it():
    expected = (
        '{"name":"m","platform":"","backend":"python","runtime":"",'
        '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,'
        + INPUT_JSON
        + OUTPUT_JSON
        + OPTIMIZATION_JSON
        + '"instance_group":[{"name":"m","kind":"KIND_CPU","count":1,'
        + GROUP_JSON
        + '],"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},'
        '"parameters":{},"model_warmup":[]}'
    )

    assert config_to_json(normal(f"{PYTHON} {INPUT} {OUTPUT}")).decode() == expected


FULL = (
    PYTHON
    + INPUT
    + OUTPUT
    + """
    max_batch_size: 16
    version_policy { specific { versions: [ 1, 2 ] } }
    dynamic_batching {
      preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
      priority_levels: 3 default_priority_level: 2
      default_queue_policy {
        timeout_action: DELAY default_timeout_microseconds: 5000
        allow_timeout_override: true max_queue_size: 9
      }
      priority_queue_policy { key: 1 value { max_queue_size: 7 } }
    }
    instance_group [
      { kind: KIND_CPU count: 0 },
      { name: "g" count: 2 rate_limiter {
          resources [ { name: "r" count: 2 global: true } ] priority: 2 } }
    ]
    parameters { key: "k" value { string_value: "v" } }
    metric_tags { key: "a" value: "1" }
    optimization {
      priority: PRIORITY_MAX graph { level: 1 } input_pinned_memory { enable: false }
      gather_kernel_buffer_threshold: 3 eager_batching: true
      cuda { graph_spec [ { batch_size: 1 input { key: "x" value { dim: [ 3 ] } } } ] }
    }
    model_warmup [ { name: "w" batch_size: 1 inputs {
      key: "x" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } } ]
    """
)


def test_full_config_prints_as_triton_prints_it():
    expected = (
        '{"name":"m","platform":"","backend":"python","runtime":"",'
        '"version_policy":{"specific":{"versions":[1,2]}},"max_batch_size":16,'
        + INPUT_JSON
        + OUTPUT_JSON
        + '"optimization":{"graph":{"level":1},"priority":"PRIORITY_MAX","cuda":{"graphs":false,'
        '"busy_wait_events":false,"graph_spec":[{"batch_size":1,"input":{"x":{"dim":["3"]}}}],'
        '"output_copy_stream":false},"input_pinned_memory":{"enable":false},'
        '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":3,'
        '"eager_batching":true},"dynamic_batching":{"preferred_batch_size":[4,8],'
        '"max_queue_delay_microseconds":100,"preserve_ordering":false,"priority_levels":3,'
        '"default_priority_level":2,"default_queue_policy":{"timeout_action":"DELAY",'
        '"default_timeout_microseconds":5000,"allow_timeout_override":true,"max_queue_size":9},'
        '"priority_queue_policy":{"1":{"timeout_action":"REJECT","default_timeout_microseconds":0,'
        '"allow_timeout_override":false,"max_queue_size":7}}},'
        '"instance_group":[{"name":"m_0","kind":"KIND_CPU","count":1,'
        + GROUP_JSON
        + ',{"name":"g","kind":"KIND_CPU","count":2,"rate_limiter":{"resources":[{"name":"r",'
        '"global":true,"count":2}],"priority":2},'
        + GROUP_JSON
        + '],"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{"a":"1"},'
        '"parameters":{"k":{"string_value":"v"}},"model_warmup":[{"name":"w","batch_size":1,'
        '"inputs":{"x":{"data_type":"TYPE_FP32","dims":[2],"zero_data":true}},"count":0}]}'
    )

    assert config_to_json(normal(FULL)).decode() == expected


def test_sequence_config_prints_floats_as_triton_prints_them():
    config = normal(
        PYTHON
        + """ max_batch_size: 4 sequence_batching {
          direct { minimum_slot_utilization: 0.1 }
          control_input [ { name: "S" control [
            { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1.5 ] } ] } ]
          state [ { input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [ 2 ]
            initial_state { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true name: "n" } } ] }"""
    )

    printed = orjson.loads(config_to_json(config))["sequence_batching"]

    assert printed["direct"] == {
        "max_queue_delay_microseconds": 0,
        "minimum_slot_utilization": 0.1,
    }
    assert printed["max_sequence_idle_microseconds"] == 1_000_000
    assert printed["control_input"][0]["control"][0]["fp32_false_true"] == [0, 1.5]
    assert b'"fp32_false_true":[0,1.5]' in config_to_json(config)
    assert printed["state"][0]["dims"] == [2]
    assert printed["state"][0]["initial_state"][0]["dims"] == ["2"]


def test_printed_config_reads_back_as_the_same_message():
    config = normal(FULL)

    assert config_from_dict(orjson.loads(config_to_json(config))) == config


def test_normalising_is_idempotent_and_leaves_its_argument_alone():
    config = config_from_text(f"{PYTHON} {INPUT} {OUTPUT}", "config.pbtxt")
    before = config.SerializeToString(deterministic=True)

    once = normalise_config(config)

    assert config.SerializeToString(deterministic=True) == before
    assert normalise_config(once) == once


def test_dynamic_batching_prefers_the_largest_batch_by_default():
    assert list(
        normal(
            f"{PYTHON} max_batch_size: 8 dynamic_batching {{ }}"
        ).dynamic_batching.preferred_batch_size
    ) == [8]
    assert list(
        normal(
            f"{PYTHON} max_batch_size: 4 sequence_batching {{ oldest {{ }} }}"
        ).sequence_batching.oldest.preferred_batch_size
    ) == [4]
    assert not normal(f"{PYTHON} dynamic_batching {{ }}").dynamic_batching.preferred_batch_size


def test_instance_groups_get_a_name_a_count_and_a_kind():
    groups = normal(f"{PYTHON} instance_group [ {{ }}, {{ count: -2 kind: KIND_MODEL }} ]")

    kinds = model_config_pb2.ModelInstanceGroup
    assert [(group.name, group.count, group.kind) for group in groups.instance_group] == [
        ("m_0", 1, kinds.KIND_CPU),
        ("m_1", 1, kinds.KIND_MODEL),
    ]


def test_instance_group_of_no_kind_goes_to_all_gpus_where_there_are_any():
    config = normal(PYTHON, gpu_ids=(0, 1))
    validate_config(config, (0, 1))

    group = config.instance_group[0]
    assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert list(group.gpus) == [0, 1]


def test_ensemble_gets_neither_instances_nor_optimization():
    config = normal('name: "e" platform: "ensemble" ensemble_scheduling { }')

    assert not config.HasField("optimization")
    assert not config.instance_group
    assert config.HasField("model_transaction_policy")


@pytest.mark.parametrize(
    "values,hint",
    [
        ({"nmae": "m"}, "nmae"),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"input": {"name": "x"}}, "input"),
        ({"input": [{"name": "x", "dims": [1.5]}]}, "dims"),
        ({"input": [{"name": "x", "data_type": "FLOAT"}]}, "data_type"),
        ({"parameters": ["a"]}, "parameters"),
        (["m"], "JSON object, got list"),
        ({"\ud83d": "m"}, "surrogates not allowed"),
        ({"name": "\ud83d"}, "surrogate"),
    ],
)
def test_config_from_dict_names_what_it_refuses(values, hint):
    with pytest.raises(InvalidArgumentError, match=hint):
        config_from_dict(values)


def test_config_from_text_refuses_a_number_that_no_value_of_an_enum_can_have():
    with pytest.raises(InvalidArgumentError, match=r"m/config\.pbtxt: Value out of range: 184"):
        config_from_text("input { data_type: 18446744073709551616 }", "m/config.pbtxt")


def test_config_from_text_names_the_file_and_the_place():
    with pytest.raises(InvalidArgumentError) as caught:
        config_from_text("max_batch_size: 1\nfoo: 2", "models/m/config.pbtxt")

    assert caught.value.message.startswith(
        "failed to read text proto from models/m/config.pbtxt:2:1: Message type"
    )


@pytest.mark.parametrize(
    "text, end",
    [
        ("max_batchsize: 1", ' named "max_batchsize". Did you mean "max_batch_size"?'),
        (
            "dynamic_batching { prefered_batch_size: [ 2 ] }",
            ' Did you mean "preferred_batch_size"?',
        ),
        ("colour: 1", ' named "colour".'),
        ("instance_group [ { kind: CPU } ]", " KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL."),
        ("input [ { data_type: FP32 } ]", ", TYPE_STRING, TYPE_BF16."),
    ],
)
def test_config_from_text_says_what_was_perhaps_meant(text, end):
    with pytest.raises(InvalidArgumentError) as caught:
        config_from_text(text, "config.pbtxt")

    assert caught.value.message.endswith(end)


def test_spec_holds_what_the_hot_path_reads():
    spec = spec_from_config(
        normal(
            FULL
            + 'input [ { name: "o" data_type: TYPE_STRING dims: [ 3 ] optional: true } ]'
            + 'output [ { name: "z" data_type: TYPE_INT64 dims: [ 2 ] label_filename: "l.txt" } ]'
        ),
        version=2,
    )

    assert (spec.name, spec.version, spec.platform, spec.max_batch_size) == ("m", 2, "python", 16)
    assert spec.inputs["x"].dtype is dtypes.FP32
    assert (spec.inputs["x"].dims, spec.inputs["x"].shape) == ((-1,), (-1, -1))
    assert spec.inputs["x"].has_variable_dims
    assert spec.inputs["o"].dtype is dtypes.BYTES
    assert not spec.inputs["o"].has_variable_dims
    assert spec.required_inputs == {"x"}
    assert spec.outputs["z"].label_filename == "l.txt"
    assert spec.batcher is not None
    assert spec.batcher.preferred_batch_sizes == (4, 8)
    assert spec.batcher.default_queue_policy == QueuePolicySpec(
        timeout_action=QueueTimeoutAction.DELAY,
        default_timeout_us=5000,
        allow_timeout_override=True,
        max_queue_size=9,
    )
    assert spec.batcher.queue_policies == {1: QueuePolicySpec(max_queue_size=7)}


def test_spec_of_a_model_that_does_not_batch_shows_its_dims():
    spec = spec_from_config(
        normal(
            f"{PYTHON} {INPUT} response_cache {{ enable: true }} "
            'platform: "onnxruntime_onnx" model_transaction_policy { decoupled: true }'
        ),
        version=1,
    )

    assert spec.inputs["x"].shape == (-1,)
    assert spec.batcher is None
    assert spec.decoupled
    assert spec.response_cache
    assert spec.platform == "onnxruntime_onnx"


def test_spec_of_an_ensemble_has_no_batcher():
    spec = spec_from_config(normal('name: "e" platform: "ensemble" ensemble_scheduling { }'), 1)

    assert spec.platform == "ensemble"
    assert spec.batcher is None


def test_spec_says_how_tensors_are_reshaped():
    config = normal(
        f"{PYTHON} max_batch_size: 2 "
        'input [ { name: "x" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] } } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }, '
        '{ name: "z" data_type: TYPE_FP32 dims: [4] reshape { shape: [4] } }, '
        '{ name: "plain" data_type: TYPE_FP32 dims: [4] } ]'
    )
    validate_config(config)
    spec = spec_from_config(config, version=1)

    assert spec.inputs["x"].reshape == Reshape((4,), (2, 2))
    assert spec.inputs["x"].shape == (-1, 4)
    assert {name: each.reshape for name, each in spec.outputs.items()} == {
        "y": Reshape((), (1,)),
        "z": None,
        "plain": None,
    }


@pytest.mark.parametrize("max_batch_size,is_ragged", [(2, True), (0, False)])
def test_only_batches_are_ragged(max_batch_size, is_ragged):
    config = normal(
        f"{PYTHON} max_batch_size: {max_batch_size} "
        'input [ { name: "x" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true } ] '
    )

    assert spec_from_config(config, version=1).inputs["x"].is_ragged is is_ragged


@pytest.mark.parametrize(
    "program",
    [
        (
            "import pytriton.base.protos as p, sys; assert 'grpc' not in sys.modules; "
            "import tritonclient.grpc as g, tritonclient.grpc.aio; "
            "g.InferenceServerClient('localhost:1').close()"
        ),
        "import tritonclient.grpc as g; import pytriton.base.protos as p",
    ],
    ids=["messages first", "client first"],
)
def test_messages_and_those_of_the_client_are_in_one_process_in_either_order(program):
    exchange = (
        "ours = p.service_pb2.ModelReadyRequest(name='m', version='1'); "
        "theirs = g.service_pb2.ModelReadyRequest.FromString(ours.SerializeToString()); "
        "assert theirs.name == 'm' and theirs.version == '1'; "
        "assert p.service_pb2.ModelReadyRequest.FromString(theirs.SerializeToString()) == ours"
    )

    result = subprocess.run([sys.executable, "-c", f"{program}; {exchange}"], check=False)

    assert result.returncode == 0
