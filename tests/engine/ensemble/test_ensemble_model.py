# SPDX-License-Identifier: Apache-2.0
"""An ensemble that serves requests through the models of its steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import UNEXPECTED, CancelledError, InternalError, UnsupportedError
from pytriton.base.messages import (
    DeviceExport,
    DevicePlace,
    DeviceUse,
    InferTensor,
    TraceContext,
)
from pytriton.runtime.executor import device_regions
from pytriton.runtime.executor.device_blocks import DeviceLedger
from pytriton.runtime.transport.arena import Arena, block_bytes, find_block
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.ensemble.run import EnsembleRun
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.observers import Observer, Watcher
from pytriton.serving.engine.stats import FailureReason
from tests.e2e.waiting import DEADLINE_S
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step
from tests.engine.ensemble.ensemble_rig import EnsembleRig, tensor
from tests.fakes import RecordingSink, infer_request

A, B = model_config("a"), model_config("b")
CHAIN = ensemble_config(step("a", {"IN": "X"}, {"OUT": "t"}), step("b", {"IN": "t"}, {"OUT": "Y"}))
NO_SEQUENCE = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


@pytest.fixture
def chain() -> EnsembleRig:
    return EnsembleRig(A, B, CHAIN)


def test_request_runs_through_all_steps(chain: EnsembleRig) -> None:
    _, sink = chain.infer("e", tensor("X", b"x" * 32, rows=2), id="q")
    first = chain.request("a")
    chain.answer("a", tensor("OUT", b"t" * 32, rows=2))
    second = chain.request("b")
    assert sink.responses == []
    chain.answer("b", tensor("OUT", b"y" * 32, rows=2))

    (response,) = sink.responses
    assert first.inputs["IN"].data == b"x" * 32
    assert second.inputs["IN"].data == b"t" * 32
    assert response is not None
    assert (response.model_name, response.model_version, response.id) == ("e", "1", "q")
    assert [(each.name, each.shape, each.data) for each in response.outputs] == [
        ("Y", (2, 4), b"y" * 32)
    ]
    assert response.parameters == NO_SEQUENCE
    assert sink.final_count == 1
    assert not chain.ensembles["e"].is_busy


def test_steps_get_what_the_request_says(chain: EnsembleRig) -> None:
    _, sink = chain.infer(
        id="q",
        parameters={"p": 1},
        priority=2,
        timeout_us=9,
        correlation_id="s",
        flags=3,
        call_depth=4,
    )
    request = chain.request("a")
    chain.answer("a", tensor("OUT"))
    chain.answer("b", tensor("OUT"))

    assert (request.fields.id, request.fields.parameters, request.outputs) == (
        "q",
        {"p": 1},
        ("OUT",),
    )
    assert (request.fields.priority, request.fields.timeout_us, request.call_depth) == (2, 9, 4)
    assert (request.fields.correlation_id, request.fields.flags) == ("s", 3)
    assert sink.responses[0] is not None
    assert sink.responses[0].parameters == {
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": True,
    }


def test_step_uses_the_version_that_it_names() -> None:
    rig = EnsembleRig(A)
    rig.add(ensemble_config(step("a", {"IN": "X"}, {"OUT": "Y"}, 2)))
    _, sink = rig.infer()

    text = "in ensemble 'e', Request for unknown model: 'a' version 2 is not found"
    assert [error.message for error in sink.errors] == [text]


def test_nested_ensemble_runs_its_own_steps() -> None:
    outer = ensemble_config(
        step("e", {"X": "X"}, {"Y": "t"}), step("a", {"IN": "t"}, {"OUT": "Y"}), name="outer"
    )
    rig = EnsembleRig(A, B, CHAIN, outer)
    _, sink = rig.infer("outer")
    rig.answer("a", tensor("OUT", b"1" * 16))
    rig.answer("b", tensor("OUT", b"2" * 16))
    assert rig.request("a").inputs["IN"].data == b"2" * 16
    rig.answer("a", tensor("OUT", b"3" * 16))

    assert sink.responses[0] is not None
    assert sink.responses[0].outputs[0].data == b"3" * 16


# Errors


def test_error_of_a_step_ends_the_request_and_keeps_its_kind(chain: EnsembleRig) -> None:
    _, sink = chain.infer()
    chain.fail("a", UnsupportedError("mine"))

    (error,) = sink.errors
    assert isinstance(error, UnsupportedError)
    assert error.message == "in ensemble 'e', mine"
    assert sink.final_count == 1
    assert chain.running("b") == []
    assert chain.ensembles["e"].statistics.failures[FailureReason.OTHER] == 1


def test_step_refuses_what_does_not_fit(chain: EnsembleRig) -> None:
    _, sink = chain.infer(id="q")
    chain.answer("a")

    assert [error.message for error in sink.errors] == [
        (
            "in ensemble 'e', [request id: q] expected 1 inputs but got 0 inputs for model 'b'. "
            "Got input(s) [], but missing required input(s) ['IN']. "
            "Please provide all required input(s)."
        )
    ]


def test_error_cancels_the_steps_that_run_beside_it() -> None:
    config = ensemble_config(
        step("a", {"IN": "X"}, {"OUT": "Y"}),
        step("b", {"IN": "X"}, {"OUT": "Z"}),
        outputs=["Y", "Z"],
    )
    rig = EnsembleRig(A, B, config)
    _, sink = rig.infer()
    ((_, other),) = rig.running("b")
    rig.fail("a", InternalError("no"))
    assert rig.instance("b").cancelled == [other]
    rig.answer("b", tensor("OUT"))

    assert len(sink.errors) == 1
    assert sink.responses == []
    assert sink.final_count == 1


def test_unloaded_step_gives_the_reason() -> None:
    rig = EnsembleRig(A, B, CHAIN)
    rig.engine.remove(rig.models["a"])
    rig.models["a"].stop()
    _, sink = rig.infer()

    text = "in ensemble 'e', Request for unknown model: 'a' is not found"
    assert [error.message for error in sink.errors] == [text]


def test_running_request_still_uses_a_step_that_is_being_unloaded(chain: EnsembleRig) -> None:
    _, sink = chain.infer()
    chain.engine.remove(chain.models["b"])
    chain.models["b"].become(VersionState.UNLOADING)
    chain.engine.refuse()
    chain.answer("a", tensor("OUT"))
    chain.answer("b", tensor("OUT"))

    assert sink.errors == []
    assert sink.final_count == 1


# Cancelling and pausing


def test_cancelling_reaches_the_step_that_runs(chain: EnsembleRig) -> None:
    inference, sink = chain.infer()
    ((_, running),) = chain.running("a")
    inference.cancel()
    assert chain.instance("a").cancelled == [running]
    assert sink.final_count == 0
    chain.answer("a", tensor("OUT"))

    assert [type(error) for error in sink.errors] == [CancelledError]
    assert sink.final_count == 1
    assert chain.running("b") == []


def test_cancelling_ends_a_request_whose_step_is_queued(chain: EnsembleRig) -> None:
    for _ in range(8):
        chain.infer("a", tensor("IN"))
    inference, sink = chain.infer()
    inference.cancel()

    assert [type(error) for error in sink.errors] == [CancelledError]
    assert not chain.ensembles["e"].is_busy


# Traces


class Trace(Watcher):
    """The trace of a request."""

    sees_executions = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.executions: list[Any] = []

    def add_execution(self, first: int, end: int, times_ns: Any) -> None:
        self.executions.append(times_ns)

    def contexts(self, first: int, end: int, *, is_model_file: bool) -> Any:
        return [(first, TraceContext(self.name))]


class Tracing(Observer):
    """Traces requests named `traced`, and the calls that are made for them."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.traces: list[Trace] = []

    def begun(self, members: Any) -> Any:
        if members.requests[0].fields.id != "traced":
            return None
        self.traces.append(Trace("whole"))
        return self.traces[-1]

    def called(self, request: Any, spec: Any, parent: TraceContext) -> Any:
        self.steps.append((request.model_name, spec.name, parent.traceparent))
        return Trace("step")


def test_steps_of_a_traced_request_are_traced_as_its_children() -> None:
    rig, tracing = EnsembleRig(A, B), Tracing()
    rig.engine.observers.add("tracing", tracing)
    rig.add(CHAIN)
    sink = RecordingSink()
    request = infer_request("e", {"X": tensor("X")}, id="traced", received_ns=rig.clock.now_ns)
    rig.engine.infer(request, sink)
    rig.loop.run()
    rig.answer("a", tensor("OUT"))
    rig.answer("b", tensor("OUT"))
    rig.infer()

    assert tracing.steps == [("a", "a", "whole"), ("b", "b", "whole")]
    assert sink.final_count == 1
    assert [len(trace.executions) for trace in tracing.traces] == [1]


# Statistics and the cache


def test_statistics_count_the_whole_request_and_the_times_of_its_steps(chain: EnsembleRig) -> None:
    chain.infer("e", tensor("X", bytes(32), rows=2))
    chain.answer("a", tensor("OUT", bytes(32), rows=2))
    chain.answer("b", tensor("OUT", bytes(32), rows=2))
    statistics = chain.ensembles["e"].statistics
    steps = [chain.models[name].statistics.inference_durations() for name in ("a", "b")]
    whole = statistics.inference_durations()

    assert statistics.inference_count == 2
    assert statistics.execution_count == 1
    assert [each.batch_size for each in statistics.batch_durations()] == [2]
    assert whole.success.count == whole.compute_infer.count == whole.queue.count == 1
    for phase in ("compute_input", "compute_infer", "compute_output"):
        assert getattr(whole, phase).ns == sum(getattr(each, phase).ns for each in steps)
    assert statistics.responses == []


def test_cached_answer_runs_no_step() -> None:
    config = ensemble_config(step("a", {"IN": "X"}, {"OUT": "Y"}), response_cache={"enable": True})
    rig = EnsembleRig(A, config, cache=ResponseStore(1 << 20))
    rig.infer()
    rig.answer("a", tensor("OUT", b"y" * 16))
    _, sink = rig.infer(id="again")

    (response,) = sink.responses
    assert response is not None
    assert response.outputs[0].data == b"y" * 16
    assert response.parameters is None
    assert len(rig.instance("a").batches) == 1
    assert rig.ensembles["e"].statistics.cache_hit.count == 1


def test_output_that_the_cache_still_has_to_copy_is_not_given_up() -> None:
    cached = model_config("a", dims=[1 << 16])
    cached.response_cache.enable = True
    steps = CHAIN.ensemble_scheduling.step
    rig = EnsembleRig(
        cached,
        model_config("b", dims=[1 << 16]),
        ensemble_config(*steps, dims=[1 << 16]),
        cache=ResponseStore(1 << 20),
    )
    shape = (1, 1 << 16)
    rig.infer("e", InferTensor("X", dtypes.FP32, shape, bytes(4 << 16)))
    data = block_bytes(Arena().allocate(4 << 16)).data
    rig.answer("a", InferTensor("OUT", dtypes.FP32, shape, data))

    assert find_block(rig.request("b").inputs["IN"].data) is None


# Lifecycle


def test_ensemble_is_ready_if_its_steps_are(chain: EnsembleRig) -> None:
    ensemble = chain.ensembles["e"]
    assert ensemble.is_ready
    chain.models["b"].missing_instances = 1
    assert not ensemble.is_ready
    chain.models["b"].missing_instances = 0
    chain.engine.remove(chain.models["a"])

    assert not ensemble.is_ready


def test_stop_ends_running_requests(chain: EnsembleRig) -> None:
    _, sink = chain.infer()
    chain.ensembles["e"].stop()
    chain.answer("a", tensor("OUT"))

    assert sink.final_count == 1
    assert len(sink.errors) == 1
    assert chain.ensembles["e"].state is VersionState.UNAVAILABLE


def test_drain_waits_for_running_requests() -> None:
    async def scenario() -> Any:
        rig = EnsembleRig(A, CHAIN_OF_ONE)
        rig.infer()
        draining = asyncio.ensure_future(rig.ensembles["e"].drain())
        await asyncio.sleep(0)
        assert not draining.done()
        rig.answer("a", tensor("OUT"))
        await asyncio.wait_for(draining, DEADLINE_S)

    asyncio.run(scenario())


CHAIN_OF_ONE = ensemble_config(step("a", {"IN": "X"}, {"OUT": "Y"}))


def test_many_steps_that_are_answered_at_once_do_not_nest() -> None:
    tensors = ["X", *(f"t{index}" for index in range(300)), "Y"]
    steps = [
        step("a", {"IN": each}, {"OUT": tensors[i + 1]}) for i, each in enumerate(tensors[:-1])
    ]
    cached = model_config("a")
    cached.response_cache.enable = True
    rig = EnsembleRig(cached, ensemble_config(*steps), cache=ResponseStore(1 << 20))
    _, sink = rig.infer()
    rig.answer("a", tensor("OUT"))
    rig.answer("a", tensor("OUT"))  # was asked before the first answer was stored

    assert sink.errors == []
    assert sink.final_count == 1


def test_request_ends_if_its_next_step_cannot_be_made(
    chain: EnsembleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sink = chain.infer()

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(EnsembleRun, "respond", fail)
    chain.answer("a", tensor("OUT"))

    assert [error.message for error in sink.errors] == ["in ensemble 'e', " + UNEXPECTED]
    assert not chain.ensembles["e"].is_busy


def test_plans_for_the_outputs_that_clients_choose_are_bounded() -> None:
    names = [f"Y{index}" for index in range(10)]
    steps = [step("a", {"IN": "X"}, {"OUT": name}) for name in names]
    rig = EnsembleRig(A, ensemble_config(*steps, outputs=names))
    for number in range(1, 1 << len(names)):
        chosen = [name for index, name in enumerate(names) if number >> index & 1]
        inference, _ = rig.infer(outputs=tuple(chosen))
        inference.cancel()
    assert len(rig.ensembles["e"]._plans) <= 256


# GPU memory


class DeviceStep:
    """What an instance has that takes and gives tensors in GPU memory."""

    def __init__(self, rig: EnsembleRig, name: str) -> None:
        instance: Any = rig.instance(name)
        self.ledger = DeviceLedger(instance, (name, "1"), rig.loop, lambda _: None)
        self.ledger.refusal = ""
        self.ledger.keeps_inputs = True
        instance.device_ledger = self.ledger

    def output(self) -> InferTensor:
        export = DeviceExport(1, 16, 0, allocation=1, handle=b"h", gpu=b"g", allocation_size=16)
        return tensor("OUT", self.ledger.take_all({"OUT": export})["OUT"])


def test_step_gets_gpu_memory_also_if_the_instance_that_wanted_it_has_ended(
    chain: EnsembleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = DeviceStep(chain, "a"), DeviceStep(chain, "b")
    monkeypatch.setattr(device_regions, "has_keeping", lambda: True)
    chain.infer()
    wish = chain.request("a").device_wish
    monkeypatch.setattr(device_regions, "has_keeping", lambda: False)
    chain.answer("a", first.output())
    device = chain.request("b").device
    first.ledger.close()

    assert wish is not None
    assert wish.outputs == ("OUT",)
    assert device is not None
    assert list(device.inputs) == ["IN"]


def test_gpu_memory_of_a_client_is_refused(chain: EnsembleRig) -> None:
    use = DeviceUse({"X": DevicePlace("r", 1, b"h", 0, 16, 0, 16)}, {})
    _, sink = chain.infer(device=use)

    (error,) = sink.refusals
    assert error.message == "model 'e' is an ensemble, which takes no tensors in GPU memory"
    assert isinstance(error, UnsupportedError)
