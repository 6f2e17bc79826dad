# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import re

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf import text_format as protobuf_text_format
from tritonclient.grpc import model_config_pb2

from pytriton.exceptions import PyTritonModelConfigError
from pytriton.model_config.common import DeviceKind, DynamicBatcher, QueuePolicy, TimeoutAction
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from tests.model_config.test_generator import full_config


def _parse(**message):
    return ModelConfigParser.from_dict({"name": "m", **message})


def test_smallest_config():
    assert _parse() == TritonModelConfig("m", max_batch_size=0, batching=False)


def protobuf_message():
    message = ModelConfigGenerator(full_config()).get_config()
    return json_format.ParseDict(message, model_config_pb2.ModelConfig())


def test_generated_config_is_read_back():
    message = ModelConfigGenerator(full_config()).get_config()

    assert ModelConfigParser.from_dict(message) == full_config()


def test_numbers_that_came_as_text_are_read():
    message = json_format.MessageToJson(protobuf_message(), preserving_proto_field_name=True)

    assert '"dims": [\n        "1",\n        "-1"' in message
    assert ModelConfigParser.from_dict(json.loads(message)) == full_config()


@pytest.mark.parametrize("is_ours", [True, False])
def test_our_own_file_and_one_that_protobuf_wrote_are_read_back(tmp_path, is_ours):
    path = tmp_path / "config.pbtxt"
    ModelConfigGenerator(full_config()).to_file(path)
    if not is_ours:
        path.write_text(protobuf_text_format.MessageToString(protobuf_message()))

    assert ModelConfigParser.from_file(config_path=path) == full_config()


def test_file_that_a_person_wrote_is_read(tmp_path):
    path = tmp_path / "config.pbtxt"
    path.write_text(
        """
        # a comment with "quotes" and {
        name: 'm' max_batch_size: 8;
        input [
          { name: "x", data_type: TYPE_FP32, dims: [ 3, -1 ] },
          { name: "y" data_type: TYPE_STRING dims: 1 }
        ]
        output: < name: "z" data_type: TYPE_INT64 dims: [ 1 ] >
        dynamic_batching { }
        instance_group [{ kind: KIND_GPU }]
        """
    )

    assert ModelConfigParser.from_file(config_path=path) == TritonModelConfig(
        model_name="m",
        max_batch_size=8,
        batcher=DynamicBatcher(),
        inputs=[TensorSpec("x", (3, -1), np.float32), TensorSpec("y", (1,), np.bytes_)],
        outputs=[TensorSpec("z", (1,), np.int64)],
        instance_group={DeviceKind.KIND_GPU: None},
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("name: %", "1:7 : 'name: %'"),
        ("input { name: 'x'", 'Expected "}"'),
        ("name:", "1:6"),
        ("name }", 'Expected ":"'),
        ("dims: [ 1", 'Expected ","'),
        ("parameters: 5", 'Expected "{"'),
        ("5: 5", "Expected a model name"),
        ("name: 'open", "missing ending quote"),
        ("input {" * 5000, "recursion"),
    ],
)
def test_file_that_is_no_protobuf_text_is_refused(tmp_path, text, expected):
    path = tmp_path / "config.pbtxt"
    path.write_text(text)

    with pytest.raises(PyTritonModelConfigError, match=re.escape(expected)):
        ModelConfigParser.from_file(config_path=path)


def test_escapes_stand_for_bytes(tmp_path):
    path = tmp_path / "config.pbtxt"
    path.write_text(r'name: "\303\244\x41\t\""')

    assert ModelConfigParser.from_file(config_path=path).model_name == 'äA\t"'


def test_config_without_name_is_refused():
    with pytest.raises(PyTritonModelConfigError, match=r"a model name, got \['backend'\] only"):
        ModelConfigParser.from_dict({"backend": "python"})


@pytest.mark.parametrize("io_type", ["input", "output"])
@pytest.mark.parametrize(
    "tensor, expected",
    [
        ({}, "Name for {} at index 0 not provided."),
        ({"name": "x"}, "Data type for {} with name `x` not defined."),
        (
            {"name": "x", "data_type": "FLOAT32"},
            (
                "Invalid data type `FLOAT32` for {} with name `x` not defined. "
                "The expected name is TYPE_{{type}}."
            ),
        ),
        (
            {"name": "x", "data_type": "TYPE_FLOAT32"},
            "Unsupported data type `TYPE_FLOAT32` for {} with name `x`",
        ),
        (
            {"name": "x", "data_type": "TYPE_FP32"},
            "Dimension for {} with name `x` not defined.",
        ),
    ],
)
def test_tensor_that_cannot_be_read_is_named(io_type, tensor, expected):
    with pytest.raises(PyTritonModelConfigError, match=re.escape(expected.format(io_type))):
        _parse(**{io_type: [tensor]})


@pytest.mark.parametrize(
    "data_type, dtype",
    [
        ("TYPE_STRING", np.bytes_),
        ("TYPE_BOOL", np.dtype("bool")),
        ("TYPE_UINT16", np.uint16),
        ("TYPE_BF16", ml_dtypes.bfloat16),
    ],
)
def test_datatype_becomes_a_numpy_type(data_type, dtype):
    config = _parse(input=[{"name": "x", "data_type": data_type, "dims": ["-1", 2]}])

    assert config.inputs == [TensorSpec("x", (-1, 2), dtype)]


@pytest.mark.parametrize(
    "parameters, expected",
    [({"k": {"string_value": "v"}}, {"k": "v"}), (["k", "l"], {"k": "", "l": ""}), ({}, {})],
)
def test_parameters_may_be_values_or_names(parameters, expected):
    assert _parse(parameters=parameters).backend_parameters == expected


def test_empty_batcher_is_the_default_one():
    assert _parse(max_batch_size=1, dynamic_batching={}).batcher == DynamicBatcher()


def test_queue_policy_defaults_follow_the_message():
    batcher = _parse(dynamic_batching={"default_queue_policy": {"timeout_action": "DELAY"}}).batcher

    assert batcher.default_queue_policy == QueuePolicy(TimeoutAction.DELAY)


def test_instances_placed_by_the_model_are_read():
    config = _parse(instance_group=[{"kind": "KIND_MODEL", "count": "2"}, {"count": 1}])

    assert config.instance_group == {DeviceKind.KIND_MODEL: 2, DeviceKind.KIND_AUTO: 1}


def test_backend_is_python_and_not_a_field():
    config = TritonModelConfig("m")

    assert config.backend == "python"
    assert "backend" not in {field.name for field in dataclasses.fields(config)}
