# SPDX-License-Identifier: Apache-2.0
"""Ensembles with decoupled steps: streams, their order and their flow control."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from pytriton.base.errors import CancelledError, InternalError
from pytriton.serving.engine.rate_limiter import InstanceLimits, ResourceNeed
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step
from tests.engine.ensemble.ensemble_rig import EnsembleRig, tensor
from tests.fakes import RecordingSink

SOURCE, FILTER = model_config("source", decoupled=True), model_config("filter")
STEPS = (step("source", {"IN": "X"}, {"OUT": "t"}), step("filter", {"IN": "t"}, {"OUT": "Y"}))


def values(number: int) -> bytes:
    return bytes([number]) * 16


def received(sink: RecordingSink) -> list[int | None]:
    return [None if each is None else each.outputs[0].data[0] for each in sink.responses]


@pytest.fixture
def stream() -> EnsembleRig:
    return EnsembleRig(SOURCE, FILTER, ensemble_config(*STEPS))


def test_responses_pass_the_step_after_in_order(stream: EnsembleRig) -> None:
    _, sink = stream.infer()
    for number in range(3):
        stream.answer("source", tensor("OUT", values(number)), final=False)
    for number in (2, 1, 0):
        stream.answer("filter", tensor("OUT", values(number)), index=number)
    assert received(sink) == [0, 1, 2]
    assert sink.final_count == 0
    stream.end("source")

    assert received(sink) == [0, 1, 2, None]
    assert sink.final_count == 1
    assert stream.ensembles["e"].statistics.inference_count == 1


def test_error_of_a_response_ends_the_stream(stream: EnsembleRig) -> None:
    _, sink = stream.infer()
    stream.answer("source", tensor("OUT", values(0)), final=False)
    stream.answer("filter", tensor("OUT", values(0)))
    ((_, source),) = stream.running("source")
    stream.fail("source", InternalError("mid"), final=False)
    stream.answer("source", tensor("OUT", values(1)), final=False)
    stream.end("source")

    assert received(sink) == [0]
    assert [error.message for error in sink.errors] == ["in ensemble 'e', mid"]
    assert sink.final_count == 1
    assert stream.instance("source").cancelled == [source]
    assert stream.running("filter") == []


def test_cancelling_a_stream_reaches_its_source(stream: EnsembleRig) -> None:
    inference, sink = stream.infer()
    ((_, source),) = stream.running("source")
    inference.cancel()
    stream.answer("source", tensor("OUT", values(1)), final=False)
    stream.end("source")

    assert stream.instance("source").cancelled == [source]
    assert [type(error) for error in sink.errors] == [CancelledError]
    assert sink.final_count == 1


def test_client_that_is_behind_lets_the_source_wait(stream: EnsembleRig) -> None:
    inference, _ = stream.infer()
    ((_, source),) = stream.running("source")
    inference.pause()
    assert source.is_paused
    inference.resume()

    assert not source.is_paused


def test_source_gets_credit_only_while_the_client_takes_responses(stream: EnsembleRig) -> None:
    inference, _ = stream.infer()
    ((_, source),) = stream.running("source")
    inference.pause()
    for number in range(3):
        stream.answer("source", tensor("OUT", values(number)), final=False)
    assert stream.instance("source").granted == []
    inference.resume()

    assert stream.instance("source").granted == [(source, 3)]


def test_step_that_starts_for_a_paused_client_is_paused() -> None:
    rig = EnsembleRig(
        SOURCE,
        FILTER,
        ensemble_config(
            step("filter", {"IN": "X"}, {"OUT": "t"}), step("source", {"IN": "t"}, {"OUT": "Y"})
        ),
    )
    inference, _ = rig.infer()
    inference.pause()
    rig.answer("filter", tensor("OUT"))
    ((_, source),) = rig.running("source")

    assert source.is_paused


# Limits


def limited(limit: int = 2) -> EnsembleRig:
    return EnsembleRig(SOURCE, FILTER, ensemble_config(*STEPS, max_inflight_requests=limit))


def test_step_after_a_decoupled_one_has_at_most_so_many_requests() -> None:
    rig = limited()
    _, sink = rig.infer()
    ((_, source),) = rig.running("source")
    for number in range(5):
        rig.answer("source", tensor("OUT", values(number)), final=number == 4)
    assert len(rig.running("filter")) == 2
    for number in range(5):
        assert len(rig.running("filter")) <= 2
        rig.answer("filter", tensor("OUT", values(number)))

    assert received(sink) == [0, 1, 2, 3, 4]
    assert sink.final_count == 1
    assert source.is_over


def test_source_waits_while_responses_wait_for_the_step_after_it() -> None:
    rig = limited(1)
    rig.infer()
    ((_, source),) = rig.running("source")
    rig.answer("source", tensor("OUT", values(0)), final=False)
    assert not source.is_paused
    rig.answer("source", tensor("OUT", values(1)), final=False)
    assert source.is_paused
    rig.answer("filter", tensor("OUT", values(0)))

    assert not source.is_paused


def test_source_does_not_wait_for_a_step_that_needs_its_resources() -> None:
    config = ensemble_config(*STEPS, max_inflight_requests=1)
    rig = EnsembleRig(
        SOURCE, FILTER, config, limits=InstanceLimits(resources=(ResourceNeed("R", 1),))
    )
    _, sink = rig.infer()
    ((_, source),) = rig.running("source")
    for number in range(3):
        rig.answer("source", tensor("OUT", values(number)), final=False)
    assert rig.running("filter") == []  # the source has the resource until it ends
    assert not source.is_paused
    rig.end("source")
    for number in range(3):
        rig.answer("filter", tensor("OUT", values(number)))

    assert received(sink) == [0, 1, 2]


def test_cancelled_request_gives_its_turn_to_another() -> None:
    rig = limited(1)
    first, first_sink = rig.infer()
    rig.answer("source", tensor("OUT", values(0)), final=False)
    rig.answer("source", tensor("OUT", values(1)))
    second, second_sink = rig.infer()
    rig.answer("source", tensor("OUT", values(7)))
    first.cancel()
    rig.answer("filter", tensor("OUT", values(0)))
    rig.answer("filter", tensor("OUT", values(7)))

    assert [type(error) for error in first_sink.errors] == [CancelledError]
    assert received(second_sink) == [7]
    assert second_sink.final_count == 1
    assert second.is_over


def test_cancelled_request_leaves_nothing_that_waits_for_a_turn() -> None:
    rig = limited(1)
    rig.infer()
    rig.answer("source", tensor("OUT", values(0)))
    data = np.ones(16, np.uint8)
    is_kept = weakref.ref(data)
    inference, sink = rig.infer()
    rig.answer("source", tensor("OUT", data.data))  # type: ignore[arg-type]  any buffer
    del data
    gc.disable()
    try:
        inference.cancel()
        del inference

        assert sink.final_count == 1
        assert is_kept() is None
    finally:
        gc.enable()


def test_requests_that_wait_for_a_turn_end_with_the_model_of_their_step() -> None:
    rig = limited(1)
    sinks = []
    for _ in range(500):
        sinks.append(rig.infer()[1])
        rig.answer("source", tensor("OUT", values(0)))
    rig.models["filter"].stop()
    rig.loop.run()

    assert {sink.final_count for sink in sinks} == {1}
    assert not rig.ensembles["e"].is_busy
