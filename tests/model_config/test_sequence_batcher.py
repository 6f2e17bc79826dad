# SPDX-License-Identifier: Apache-2.0
"""Settings of sequences in a bound model's configuration, as the server reads them."""

import json

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import (
    ControlKind,
    DirectStrategy,
    DynamicBatcher,
    ModelConfig,
    OldestStrategy,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
)
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.sequence_batcher import initial_states, only_request_inputs
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.serving.engine.config import (
    config_from_dict,
    config_from_text,
    config_to_json,
    normalise_config,
    spec_from_config,
    validate_config,
)

FULL = SequenceBatcher(
    strategy=OldestStrategy(8, [2, 4], 100, preserve_ordering=True),
    max_sequence_idle_microseconds=5_000_000,
    controls=[
        SequenceControl(ControlKind.START),
        SequenceControl(ControlKind.END, "LAST", np.int32, (3, 9)),
        SequenceControl(ControlKind.READY, dtype=np.float32),
        SequenceControl(ControlKind.CORRID, dtype=np.bytes_),
    ],
    states=[
        SequenceState("sum_in", "sum_out", np.float32, (1,)),
        SequenceState("text_in", "text_out", np.bytes_, (-1,), use_growable_memory=True),
        SequenceState(
            "seen_in", "seen_out", np.int64, (2, -1), use_same_buffer_for_input_output=True
        ),
    ],
    max_queue_size=16,
    generate_ids=True,
)


def config_of(sequence, **fields):
    return TritonModelConfig(
        model_name="m",
        inputs=[TensorSpec("x", (1,), np.float32)],
        outputs=[TensorSpec("y", (1,), np.float32)],
        sequence=sequence,
        **fields,
    )


def spec_of(sequence, **fields):
    """Returns the settings as the server has them."""
    message = ModelConfigGenerator(config_of(sequence, **fields)).get_config()
    config = normalise_config(config_from_dict(message))
    validate_config(config)
    return spec_from_config(config, 1, initial_states=initial_states(sequence)).sequence


def test_the_default_adds_nothing_but_sequences():
    spec = spec_of(SequenceBatcher())

    assert spec.max_candidates is None
    assert (spec.controls, spec.states) == ((), ())
    assert spec.idle_us == 1_000_000


def test_sequences_replace_the_dynamic_batcher():
    config = config_of(SequenceBatcher(), batcher=DynamicBatcher())
    message = ModelConfigGenerator(config).get_config()

    assert "dynamic_batching" not in message


def test_sequences_need_no_batching():
    assert spec_of(SequenceBatcher(), batching=False) is not None


def test_the_server_reads_all_settings():
    spec = spec_of(FULL, max_batch_size=8)

    assert (spec.max_candidates, spec.preferred_batch_sizes) == (8, (2, 4))
    assert (spec.max_queue_delay_us, spec.preserve_ordering) == (100, True)
    assert (spec.idle_us, spec.max_queue_size, spec.generates_ids) == (5_000_000, 16, True)
    assert [(each.name, each.dtype.name, each.false_true) for each in spec.controls] == [
        ("START", "BOOL", (0, 1)),
        ("LAST", "INT32", (3, 9)),
        ("READY", "FP32", (0, 1)),
        ("CORRID", "BYTES", (0, 1)),
    ]
    assert [(each.input_name, each.output_name, each.dims) for each in spec.states] == [
        ("sum_in", "sum_out", (1,)),
        ("text_in", "text_out", (-1,)),
        ("seen_in", "seen_out", (2, -1)),
    ]


def test_direct_strategy_reaches_the_server():
    spec = spec_of(SequenceBatcher(DirectStrategy(7, 0.5)))

    assert (spec.max_queue_delay_us, spec.minimum_slot_utilization) == (7, 0.5)


@pytest.mark.parametrize(
    "shape,dtype,initial,data,dims",
    [
        ((2,), np.int32, np.array([1, 2]), np.array([1, 2], np.int32).tobytes(), (2,)),
        ((-1,), np.int32, np.zeros((0,)), None, (0,)),
        ((2,), np.float32, np.zeros((2,)), None, (2,)),
        ((-1,), np.bytes_, np.array([b"ab"], object), b"\2\0\0\0ab", (1,)),
    ],
)
def test_initial_states_reach_the_server(shape, dtype, initial, data, dims):
    spec = spec_of(SequenceBatcher(states=[SequenceState("i", "o", dtype, shape, initial)]))
    (state,) = spec.states

    assert (state.initial, state.initial_dims) == (data, dims)


@pytest.mark.parametrize("initial", [np.zeros((3,)), np.zeros((2, 1)), np.zeros(())])
def test_initial_state_of_another_shape_is_refused(initial):
    sequence = SequenceBatcher(states=[SequenceState("i", "o", np.int32, (2,), initial)])
    expected = r"Expected an initial value of shape \(2,\) for state `i`"

    with pytest.raises(PyTritonBadParameterError, match=expected):
        spec_of(sequence)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: SequenceControl("START"), "ControlKind as kind of a control, got 'START'"),
        (lambda: SequenceControl(ControlKind.START, np.int32), "str as name of a control, got <"),
        (
            lambda: SequenceState("i", "o", np.int32, 2),
            "tuple or list as shape of the state 'i', got 2",
        ),
        (lambda: SequenceState(1, "o", np.int32, (2,)), "str as input_name of a state, got 1"),
        (lambda: SequenceState("i", None, np.int32, (2,)), "str as output_name of a state, got N"),
        (
            lambda: SequenceBatcher(strategy="direct"),
            "DirectStrategy or OldestStrategy as strategy of sequences, got 'direct'",
        ),
        (
            lambda: SequenceBatcher(OldestStrategy),
            "DirectStrategy or OldestStrategy as strategy of sequences, got <",
        ),
        (
            lambda: SequenceBatcher(controls=[ControlKind.END]),
            "SequenceControl as control of sequences, got <ControlKind.END",
        ),
        (lambda: SequenceBatcher(states="sum"), "SequenceState as state of sequences, got 's'"),
        (lambda: ModelConfig(sequence=SequenceBatcher), "SequenceBatcher as sequence, got <class"),
        (lambda: ModelConfig(sequence={"direct": {}}), "SequenceBatcher as sequence, got {'direct"),
    ],
)
def test_objects_of_another_kind_are_refused_where_they_are_written(make, expected):
    with pytest.raises(PyTritonBadParameterError) as refused:
        make()

    assert f"Expected an object of {expected}" in str(refused.value)


@pytest.mark.parametrize(
    "control,types",
    [
        (SequenceControl(ControlKind.START, dtype=np.int64), "INT32, FP32, BOOL"),
        (
            SequenceControl(ControlKind.CORRID, dtype=np.float32),
            "UINT64, INT64, UINT32, INT32, BYTES",
        ),
    ],
)
def test_controls_have_few_types(control, types):
    expected = f"Expected one of the types {types} for control `{control.name}`"

    with pytest.raises(PyTritonBadParameterError, match=expected):
        spec_of(SequenceBatcher(controls=[control]))


@pytest.mark.parametrize("sequence", [SequenceBatcher(controls=[], states=[]), FULL])
def test_generated_settings_are_read_back(sequence, tmp_path):
    config = config_of(sequence, max_batch_size=8, backend_parameters={"mine": "x"})
    generator = ModelConfigGenerator(config)
    generator.to_file(tmp_path / "config.pbtxt")

    assert ModelConfigParser.from_dict(generator.get_config()) == config
    assert ModelConfigParser.from_file(config_path=tmp_path / "config.pbtxt") == config
    text = (tmp_path / "config.pbtxt").read_text()
    assert config_from_text(text, "") == config_from_dict(generator.get_config())


def test_settings_are_read_from_the_server_s_answer():
    config = config_of(FULL, max_batch_size=8)
    message = ModelConfigGenerator(config).get_config()
    printed = config_to_json(normalise_config(config_from_dict(message)))

    assert ModelConfigParser.from_dict(json.loads(printed)).sequence == FULL


def test_an_initial_state_of_zeros_is_read_back():
    state = SequenceState("i", "o", np.int32, (-1,), np.zeros((0,), np.int32))
    message = ModelConfigGenerator(config_of(SequenceBatcher(states=[state]))).get_config()
    (read,) = ModelConfigParser.from_dict(message).sequence.states

    assert read.initial.shape == (0,)


def test_a_request_that_is_a_whole_sequence_has_all_inputs():
    arrays = only_request_inputs(FULL, 2)

    assert {name: array.tolist() for name, array in arrays.items()} == {
        "START": [[True], [True]],
        "LAST": [[9], [9]],
        "READY": [[1.0], [1.0]],
        "CORRID": [[b"1"], [b"1"]],
        "sum_in": [[0.0], [0.0]],
        "text_in": [[b""], [b""]],
        "seen_in": [[[0], [0]], [[0], [0]]],
    }
    assert {array.shape for array in only_request_inputs(FULL, 0).values()} == {(1,), (2, 1)}
