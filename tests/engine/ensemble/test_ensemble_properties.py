# SPDX-License-Identifier: Apache-2.0
"""Random ensembles whose steps end in random order give what a plain evaluation gives, once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferTensor
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.ensemble.graph import EnsembleGraph, Step, make_graph, make_plan
from pytriton.serving.engine.ensemble.run import EnsembleAnswer, EnsembleRun, StepCall
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step
from tests.engine.ensemble.ensemble_rig import EnsembleRig, tensor
from tests.fakes import RecordingSink

MODELS = {
    config.name: config
    for config in (
        model_config("one"),
        model_config("two", ["A", "B"]),
        model_config("stream", decoupled=True),
    )
}


def random_config(random: Random, **fields: Any) -> Any:
    """Returns an ensemble in which each step reads tensors that come in the same numbers."""
    sources = {"X": -1}  # the decoupled step that each tensor comes from last
    steps = []
    for index in range(random.randint(1, 6)):
        model = random.choice(["one", "one", "two", "stream"])
        first = random.choice(list(sources))
        alike = [name for name, source in sources.items() if source == sources[first]]
        inputs = {"A": first, "B": random.choice(alike)} if model == "two" else {"IN": first}
        steps.append(step(model, inputs, {"OUT": f"t{index}"}))
        sources[f"t{index}"] = index if model == "stream" else sources[first]
    source = random.choice([source for name, source in sources.items() if name != "X"])
    alike = [name for name, each in sources.items() if each == source]
    outputs = random.sample(alike, random.randint(1, len(alike)))
    return ensemble_config(*steps, outputs=outputs, **fields)


def digest(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def response_count(inputs: list[bytes]) -> int:
    return inputs[0][0] % 4


class PlainEvaluation:
    """Computes the answers of an ensemble step by step, in the order of responses."""

    def __init__(self, graph: EnsembleGraph, outputs: tuple[str, ...]) -> None:
        self._steps = [graph.steps[index] for index in sorted(graph.needed_steps(outputs))]
        self._outputs = outputs

    def answers(self, values: dict[str, bytes], index: int = 0) -> Iterator[list[bytes]]:
        if index == len(self._steps):
            yield [values[name] for name in self._outputs]
            return
        step = self._steps[index]
        inputs = [values[each.tensor] for each in step.inputs]
        for data in step_outputs(step, inputs):
            yield from self.answers({**values, step.outputs["OUT"]: data}, index + 1)


def step_outputs(step: Step, inputs: list[bytes]) -> list[bytes]:
    count = response_count(inputs) if step.decoupled else 1
    return [digest(step.index, number, inputs) for number in range(count)]


@dataclass(eq=False)
class OpenCall:
    """A call and the responses that it still has to give."""

    call: StepCall
    left: list[bytes]


@given(st.randoms(use_true_random=False))
def test_random_ensembles_answer_as_a_plain_evaluation_does(random: Random) -> None:
    graph = make_graph(random_config(random), MODELS)
    plan = make_plan(graph, None)
    run = EnsembleRun(plan)
    first = digest(random.random())
    answers: list[EnsembleAnswer] = []
    calls = run.start({"X": InferTensor("X", dtypes.FP32, (1, 4), first)}, graph.inputs)
    waiting: list[OpenCall] = []
    while True:
        answers += run.take_answers()
        for call in calls:
            inputs = [call.inputs[each.name].data for each in call.step.inputs]
            waiting.append(OpenCall(call, step_outputs(call.step, inputs)))
        if not waiting:
            break
        calls = respond(run, waiting, random.choice(waiting), random)

    got = [
        [each.data for each in answer.outputs] for answer in answers if answer.outputs is not None
    ]
    assert got == list(PlainEvaluation(graph, plan.outputs).answers({"X": first}))
    assert [answer.is_final for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert run.open_calls == 0


def respond(
    run: EnsembleRun, waiting: list[OpenCall], chosen: OpenCall, random: Random
) -> list[StepCall]:
    """Give one more response to a call; its end may come with the last one or after it."""
    outputs = None
    if chosen.left:
        outputs = [InferTensor("OUT", dtypes.FP32, (1, 4), chosen.left.pop(0))]
    is_last = not chosen.left
    is_final = is_last and (
        outputs is None or not chosen.call.step.decoupled or random.random() < 0.5
    )
    if is_final:
        waiting.remove(chosen)
    return run.respond(chosen.call, outputs, is_final=is_final)


@given(st.randoms(use_true_random=False))
def test_every_request_of_random_ensembles_ends_once(random: Random) -> None:
    config = random_config(random, max_inflight_requests=random.choice([0, 0, 1, 2]))
    rig = EnsembleRig(*MODELS.values(), config)
    requests: list[tuple[Inference, RecordingSink]] = []
    for _ in range(random.randint(1, 30)):
        action = random.choice(["submit", "answer", "answer", "answer", "fail", "cancel", "pause"])
        if action == "submit" and len(requests) < 5:
            requests.append(rig.infer())
        elif action in ("cancel", "pause") and requests:
            inference, _ = random.choice(requests)
            if action == "cancel":
                inference.cancel()
            else:
                random.choice([inference.pause, inference.resume])()
        else:
            answer_one(rig, random, fails=action == "fail")
    while answer_one(rig, random, fails=False, ends=True):
        pass

    assert [sink.final_count for _, sink in requests] == [1] * len(requests)
    assert all(inference.is_over for inference, _ in requests)
    assert not rig.ensembles["e"].is_busy
    assert not any(model.is_busy for model in rig.models.values())


def answer_one(rig: EnsembleRig, random: Random, *, fails: bool, ends: bool = False) -> bool:
    """Answer one request of one model; returns whether there was any."""
    busy = [name for name in rig.models if rig.running(name)]
    if not busy:
        return False
    name = random.choice(busy)
    index = random.randrange(len(rig.running(name)))
    if fails:
        rig.fail(name, InternalError("no"), index)
    elif name == "stream" and (ends or random.random() < 0.3):
        rig.end(name, index)
    else:
        rig.answer(name, tensor("OUT"), index=index, final=name != "stream")
    return True
