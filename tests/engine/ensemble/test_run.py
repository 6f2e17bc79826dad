# SPDX-License-Identifier: Apache-2.0
"""The run of a request through the steps of an ensemble."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.runtime.transport.arena import Arena, block_bytes, find_block
from pytriton.serving.engine.ensemble.graph import make_graph, make_plan
from pytriton.serving.engine.ensemble.run import EnsembleAnswer, EnsembleRun, StepCall, StuckError
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step

MODELS = {
    config.name: config
    for config in (
        model_config("id"),
        model_config("plain", max_batch_size=0),
        model_config("two", ["A", "B"], optional=["B"]),
        model_config("dec", decoupled=True),
    )
}


def tensor(name: str, data: Any = b"", shape: tuple[int, ...] = (1, 4)) -> InferTensor:
    return InferTensor(name, dtypes.FP32, shape, data)


class Rig:
    """A run, its open calls and its answers."""

    def __init__(self, *steps: Any, requested: list[str] | None = None, **fields: Any) -> None:
        config = ensemble_config(*steps, **fields)
        self.graph = make_graph(config, MODELS)
        self.run = EnsembleRun(make_plan(self.graph, requested))
        self.calls: list[StepCall] = []
        self.answers: list[EnsembleAnswer] = []

    def start(self, *inputs: InferTensor) -> None:
        given = {each.name: each for each in inputs}
        self.calls += self.run.start(given, self.graph.inputs)
        self.answers += self.run.take_answers()

    def respond(self, call: StepCall, *outputs: InferTensor, final: bool = True) -> None:
        if final:
            self.calls.remove(call)
        self.calls += self.run.respond(call, outputs, is_final=final)
        self.answers += self.run.take_answers()

    def end(self, call: StepCall) -> None:
        self.calls.remove(call)
        self.calls += self.run.respond(call, None, is_final=True)
        self.answers += self.run.take_answers()

    @property
    def steps(self) -> list[int]:
        return [call.step.index for call in self.calls]

    @property
    def data(self) -> list[tuple[list[Any] | None, bool]]:
        """What the client got: the data of each answer's outputs, and whether it was final."""
        return [
            (
                None if each.outputs is None else [output.data for output in each.outputs],
                each.is_final,
            )
            for each in self.answers
        ]


CHAIN = (step("id", {"IN": "X"}, {"OUT": "t"}), step("id", {"IN": "t"}, {"OUT": "Y"}))


def test_step_gets_the_output_of_the_step_before_it() -> None:
    rig = Rig(*CHAIN)
    rig.start(tensor("X", b"x"))
    rig.respond(rig.calls[0], tensor("OUT", b"t"), tensor("unmapped", b"?"))
    (second,) = rig.calls
    inputs = second.inputs
    rig.respond(second, tensor("OUT", b"y"))

    assert second.step.index == 1
    assert {name: each.data for name, each in inputs.items()} == {"IN": b"t"}
    assert rig.data == [([b"y"], True)]
    assert rig.answers[0].outputs is not None
    assert rig.answers[0].outputs[0].name == "Y"


def test_step_waits_for_all_of_its_inputs() -> None:
    rig = Rig(
        step("id", {"IN": "X"}, {"OUT": "t"}),
        step("id", {"IN": "X"}, {"OUT": "u"}),
        step("two", {"A": "t", "B": "u"}, {"OUT": "Y"}),
    )
    rig.start(tensor("X"))
    assert rig.steps == [0, 1]
    rig.respond(rig.calls[1], tensor("OUT", b"u"))
    assert rig.steps == [0]
    rig.respond(rig.calls[0], tensor("OUT", b"t"))

    assert rig.steps == [2]
    assert {name: each.data for name, each in rig.calls[0].inputs.items()} == {"A": b"t", "B": b"u"}


def test_steps_that_requested_outputs_do_not_need_are_left_out() -> None:
    steps = (step("id", {"IN": "X"}, {"OUT": "Y"}), step("id", {"IN": "X"}, {"OUT": "Z"}))
    rig = Rig(*steps, outputs=["Y", "Z"], requested=["Z"])
    rig.start(tensor("X"))
    assert rig.steps == [1]
    rig.respond(rig.calls[0], tensor("OUT", b"z"))

    assert rig.data == [([b"z"], True)]


def test_tensor_between_steps_may_be_an_output() -> None:
    rig = Rig(*CHAIN, outputs=["Y", "t"], requested=["t"])
    rig.start(tensor("X"))
    assert rig.steps == [0]
    rig.respond(rig.calls[0], tensor("OUT", b"t"))

    assert rig.data == [([b"t"], True)]


def test_input_that_is_an_output_needs_no_step() -> None:
    rig = Rig(step("id", {"IN": "X"}, {"OUT": "Y"}), outputs=["Y", "X"], requested=["X"])
    rig.start(tensor("X", b"x"))

    assert rig.calls == []
    assert rig.data == [([b"x"], True)]


def test_step_runs_without_an_input_that_is_missing() -> None:
    rig = Rig(
        step("id", {"IN": "X"}, {"OUT": "t"}),
        step("two", {"A": "t", "B": "W"}, {"OUT": "Y"}),
        inputs=["X", "W"],
        optional=["W"],
    )
    rig.start(tensor("X"))
    rig.respond(rig.calls[0])  # its model gave no output

    assert rig.steps == [1]
    assert rig.calls[0].inputs == {}


def test_answer_lacks_an_output_that_its_model_did_not_give() -> None:
    rig = Rig(step("id", {"IN": "X"}, {"OUT": "Y"}))
    rig.start(tensor("X"))
    rig.respond(rig.calls[0])

    assert rig.data == [([], True)]


def test_run_is_stuck_if_a_step_ends_without_a_response() -> None:
    rig = Rig(*CHAIN)
    rig.start(tensor("X"))

    with pytest.raises(StuckError):
        rig.end(rig.calls[0])


# Batch dimensions


@pytest.mark.parametrize(
    "shape, expected",
    [((1, 4), (4,)), ((2, 4), (2, 4)), ((4,), (4,))],
)
def test_batch_of_one_loses_its_dimension_for_a_model_that_does_not_batch(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    rig = Rig(step("plain", {"IN": "X"}, {"OUT": "Y"}))
    rig.start(tensor("X", shape=shape))

    assert rig.calls[0].inputs["IN"].shape == expected


@pytest.mark.parametrize("shape, expected", [((4,), (1, 4)), ((3, 4), (3, 4))])
def test_tensor_of_a_model_that_does_not_batch_gains_a_dimension(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    rig = Rig(step("plain", {"IN": "X"}, {"OUT": "Y"}))
    rig.start(tensor("X"))
    rig.respond(rig.calls[0], tensor("OUT", shape=shape))

    assert rig.answers[0].outputs is not None
    assert rig.answers[0].outputs[0].shape == expected


def test_shape_between_models_that_batch_is_not_changed() -> None:
    rig = Rig(*CHAIN)
    rig.start(tensor("X"))
    rig.respond(rig.calls[0], tensor("OUT", shape=(4,)))

    assert rig.calls[0].inputs["IN"].shape == (4,)


# Memory


def test_tensor_with_one_reader_is_passed_on_by_reference() -> None:
    data = block_bytes(Arena().allocate(1 << 20)).data
    rig = Rig(*CHAIN)
    rig.start(tensor("X"))
    rig.respond(rig.calls[0], tensor("OUT", data))

    assert rig.calls[0].inputs["IN"].data is data


def test_tensor_with_several_readers_is_copied_for_each() -> None:
    data = block_bytes(Arena().allocate(1 << 20)).data
    rig = Rig(*CHAIN, outputs=["Y", "t"])
    rig.start(tensor("X"))
    rig.respond(rig.calls[0], tensor("OUT", data))
    given = rig.calls[0].inputs["IN"].data

    assert find_block(data) is not None
    assert find_block(given) is None
    assert given == data


# Decoupled steps

STREAM = (step("dec", {"IN": "X"}, {"OUT": "t"}), step("id", {"IN": "t"}, {"OUT": "Y"}))
