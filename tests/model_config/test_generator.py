# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf import text_format as protobuf_text_format
from tritonclient.grpc import model_config_pb2

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    ModelWarmup,
    QueuePolicy,
    TimeoutAction,
    WarmupInput,
)
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.triton_model_config import (
    ResponseCache,
    TensorSpec,
    TritonModelConfig,
)


def _config(**changes):
    return ModelConfigGenerator(TritonModelConfig(model_name="simple", **changes)).get_config()


def full_config():
    return TritonModelConfig(
        model_name='quoted "name" \\u0041 ä\n\x01',
        max_batch_size=16,
        batcher=DynamicBatcher(
            max_queue_delay_microseconds=100,
            preferred_batch_size=[2, 4],
            preserve_ordering=True,
            priority_levels=3,
            default_priority_level=2,
            default_queue_policy=QueuePolicy(max_queue_size=7),
            priority_queue_policy={1: QueuePolicy(TimeoutAction.DELAY, 5, True, 3)},
        ),
        instance_group={DeviceKind.KIND_CPU: 2},
        decoupled=True,
        backend_parameters={"workspace-path": "/w", "trace-config": ""},
        inputs=[
            TensorSpec("a", (1, -1), np.float32),
            TensorSpec("b", (-1,), np.bytes_, optional=True),
        ],
        outputs=[TensorSpec("c", (2,), np.bool_)],
        response_cache=ResponseCache(enable=True),
        model_warmup=[
            ModelWarmup("w", 2, {"a": WarmupInput(np.float32, (1, 4), zero_data=True)}, count=3)
        ],
    )


def test_smallest_config():
    assert _config() == {"name": "simple", "backend": "python", "max_batch_size": 4}


def test_model_without_batching_has_batch_size_zero_and_no_batcher():
    config = _config(batching=False, max_batch_size=-1, batcher=DynamicBatcher())

    assert config == {"name": "simple", "backend": "python", "max_batch_size": 0}


def test_batch_size_below_one_is_refused():
    expected = "The `max_batch_size` must be greater or equal to 1."
    with pytest.raises(PyTritonBadParameterError, match=expected):
        _config(max_batch_size=0)


def test_default_batcher_is_an_empty_object():
    assert _config(batcher=DynamicBatcher())["dynamic_batching"] == {}


def test_full_config_has_the_field_names_of_the_message():
    config = ModelConfigGenerator(full_config()).get_config()

    assert config["dynamic_batching"] == {
        "max_queue_delay_microseconds": 100,
        "preferred_batch_size": [2, 4],
        "preserve_ordering": True,
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": False,
            "max_queue_size": 7,
        },
        "priority_queue_policy": {
            "1": {
                "timeout_action": "DELAY",
                "default_timeout_microseconds": 5,
                "allow_timeout_override": True,
                "max_queue_size": 3,
            }
        },
    }
    assert config["input"] == [
        {"name": "a", "data_type": "TYPE_FP32", "dims": [1, -1]},
        {"name": "b", "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
    ]
    assert config["output"] == [{"name": "c", "data_type": "TYPE_BOOL", "dims": [2]}]
    assert config["instance_group"] == [{"kind": "KIND_CPU", "count": 2}]
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["parameters"]["workspace-path"] == {"string_value": "/w"}
    assert config["response_cache"] == {"enable": True}
    assert config["model_warmup"] == [
        {
            "name": "w",
            "batch_size": 2,
            "inputs": {"a": {"data_type": "TYPE_FP32", "dims": [1, 4], "zero_data": True}},
            "count": 3,
        }
    ]


def test_protobuf_takes_the_config_as_it_is_and_as_json():
    config = ModelConfigGenerator(full_config()).get_config()

    message = json_format.ParseDict(config, model_config_pb2.ModelConfig())

    assert message.dynamic_batching.priority_queue_policy[1].max_queue_size == 3
    assert message == json_format.Parse(json.dumps(config), model_config_pb2.ModelConfig())


def test_instance_count_may_be_left_to_the_server():
    config = _config(instance_group={DeviceKind.KIND_AUTO: None})

    assert config["instance_group"] == [{"kind": "KIND_AUTO"}]


def test_response_cache_that_is_off_is_left_out():
    assert "response_cache" not in _config(response_cache=ResponseCache(enable=False))


@pytest.mark.parametrize(
    "levels, default, level, expected",
    [
        (2, 3, 1, "must be between 1 and 2"),
        (0, 1, None, "must be between 1 and 0"),
        (2, -1, 1, "must be between 1 and 2"),
        *(
            (2, 0, level, f"`priority`={level} provided. The value must be between 1 and 2.")
            for level in (-1, 0, 3)
        ),
        (0, 0, 1, "Provide the `priority_levels`"),
    ],
)
def test_priorities_have_to_be_levels(levels, default, level, expected):
    policies = None if level is None else {level: QueuePolicy()}
    batcher = DynamicBatcher(
        priority_levels=levels, default_priority_level=default, priority_queue_policy=policies
    )

    with pytest.raises(PyTritonBadParameterError, match=expected):
        _config(batcher=batcher)


def test_optional_outputs_are_refused_by_name():
    outputs = [TensorSpec(name, (1,), np.float32, optional=name != "B") for name in "ABC"]

    expected = "Optional flag for outputs is not supported. Outputs marked as optional: A, C."
    with pytest.raises(PyTritonBadParameterError, match=expected):
        _config(outputs=outputs)


def test_type_that_triton_lacks_is_refused():
    with pytest.raises(PyTritonValidationError, match="complex64"):
        _config(inputs=[TensorSpec("a", (1,), np.complex64)])


@pytest.mark.parametrize(
    "source, expected",
    [
        ({"input_data_file": "x.npy", "zero_data": True}, {"input_data_file": "x.npy"}),
        ({"zero_data": True, "random_data": True}, {"zero_data": True}),
        ({"random_data": True}, {"random_data": True}),
    ],
)
def test_warmup_input_names_one_source(source, expected):
    warmup = ModelWarmup("w", 1, {"a": WarmupInput(np.int8, (1,), **source)}, count=1)

    (message,) = _config(model_warmup=[warmup])["model_warmup"]

    assert message["inputs"]["a"] == {"data_type": "TYPE_INT8", "dims": [1]} | expected


def test_file_is_protobuf_text_with_the_same_meaning(tmp_path):
    generator = ModelConfigGenerator(full_config())
    path = tmp_path / "models" / "simple" / "config.pbtxt"

    text = generator.to_file(path)

    assert path.read_text(encoding="utf-8") == text
    message = protobuf_text_format.Parse(text, model_config_pb2.ModelConfig())
    assert message == json_format.ParseDict(generator.get_config(), model_config_pb2.ModelConfig())


def test_file_says_that_a_model_does_not_batch(tmp_path):
    config = TritonModelConfig(model_name="simple", batching=False)

    text = ModelConfigGenerator(config).to_file(str(tmp_path / "config.pbtxt"))

    message = protobuf_text_format.Parse(text, model_config_pb2.ModelConfig())
    assert message.max_batch_size == 0
    assert not message.HasField("dynamic_batching")


def test_value_that_does_not_fit_its_field_is_not_written(tmp_path):
    config = TritonModelConfig(model_name="simple", max_batch_size=2**31)

    with pytest.raises(PyTritonBadParameterError, match="max_batch_size"):
        ModelConfigGenerator(config).to_file(tmp_path / "config.pbtxt")
