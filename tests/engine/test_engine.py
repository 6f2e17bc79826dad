# SPDX-License-Identifier: Apache-2.0
"""The engine's registry and its face to front ends, without any front end."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from pytriton.base.errors import (
    CancelledError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.serving.engine.engine import Engine, parse_version
from pytriton.serving.engine.model import UNLOADED, Model, VersionState
from tests.fakes import FakeClock, FakeInstance, FakeLoop, RecordingSink, model_spec, request


class Served:
    """A model in an engine, and its only instance."""

    def __init__(self, engine, loop, *, ready=True, bound=False, **spec):
        self.model = Model(model_spec(batches=False, **spec), loop, is_bound=bound)
        self.instance = FakeInstance("i", self.model)
        self.model.add_instance(self.instance)
        engine.add(self.model)
        if ready:
            engine.set_ready(self.model)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def loop():
    return FakeLoop(FakeClock())


@pytest.fixture
def serve(engine, loop):
    return lambda **settings: Served(engine, loop, **settings)


def test_lookup_without_version_gives_the_newest_that_is_ready(engine, serve):
    first = serve(version=1).model
    assert engine.lookup("m") is first
    second = serve(version=2).model
    serve(version=3, ready=False)

    assert engine.lookup("m") is second
    assert engine.lookup("m", "1") is first
    assert engine.ready_versions("m") == [1, 2]
    assert engine.ready_versions("other") == []


def test_lookup_follows_a_model_that_died(engine, serve):
    serve(version=1)
    second = serve(version=2)
    assert engine.lookup("m").spec.version == 2

    second.instance.die()

    assert engine.lookup("m").spec.version == 1


@pytest.mark.parametrize(
    "name, version, kind, text",
    [
        ("x", "", NotFoundError, "Request for unknown model: 'x' is not found"),
        ("x", "1", NotFoundError, "Request for unknown model: 'x' is not found"),
        ("m", "7", NotFoundError, "Request for unknown model: 'm' version 7 is not found"),
        ("m", "", NotFoundError, "Request for unknown model: 'm' has no available versions"),
        ("m", "1", UnavailableError,
         "Request for unknown model: 'm' version 1 is not at ready state"),
    ],
)  # fmt: skip
def test_lookup_says_what_is_not_served(engine, serve, name, version, kind, text):
    serve(ready=False)

    with pytest.raises(kind) as failure:
        engine.lookup(name, version)

    assert failure.value.message == text
    assert engine.find(name, version) is None


@pytest.mark.parametrize(
    "name, end",
    [("gret", ", did you mean 'greet'?"), ("GREET", ", did you mean 'greet'?"), ("other", "")],
)
def test_unknown_model_has_a_suggestion_after_tritons_words(engine, serve, name, end):
    serve(name="greet")

    with pytest.raises(NotFoundError) as failure:
        engine.lookup(name)

    assert failure.value.message == f"Request for unknown model: '{name}' is not found{end}"


def test_names_are_not_suggested_if_they_are_secret(engine, serve):
    serve(name="greet")
    engine.suggests_names = False

    with pytest.raises(NotFoundError) as failure:
        engine.lookup("gret")

    assert failure.value.message == "Request for unknown model: 'gret' is not found"


@pytest.mark.parametrize("version", ["one", "", "1.0", str(2**63), "-1"])
def test_version_has_to_be_a_number(version):
    with pytest.raises(InvalidArgumentError, match="version should be an integral value > 0"):
        parse_version(version)


def test_server_is_ready_when_all_models_are(engine, serve):
    assert engine.is_ready()
    model = serve(ready=False).model
    assert not engine.is_ready()
    engine.set_ready(model)
    assert engine.is_ready()

    engine.refuse()

    assert not engine.is_ready()


def test_server_is_ready_without_models_that_were_taken_out_of_service(engine, serve):
    model = serve().model
    model.become(VersionState.UNLOADING)
    assert engine.is_ready()
    model.become(VersionState.UNAVAILABLE, UNLOADED)
    assert engine.is_ready()

    model.become(VersionState.LOADING)
    model.become(VersionState.UNAVAILABLE, "it broke")

    assert not engine.is_ready()


def test_server_that_is_not_strict_is_ready_whatever_its_models_are(loop):
    engine = Engine(strict_readiness=False)
    Served(engine, loop, ready=False)

    assert engine.is_ready()


def test_model_is_ready_by_name_and_version(engine, serve):
    serve(version=2)

    assert engine.is_model_ready("m")
    assert engine.is_model_ready("m", "2")
    assert not engine.is_model_ready("m", "1")
    assert not engine.is_model_ready("x")


def test_statistics_are_those_of_ready_models(engine, serve):
    first, second = serve(version=1).model, serve(version=2).model
    serve(version=3, ready=False)

    assert engine.models_with_statistics() == [first, second]
    assert engine.models_with_statistics("m") == [first, second]
    assert engine.models_with_statistics("m", "2") == [second]
    with pytest.raises(InvalidArgumentError, match="requested model 'x' is not available"):
        engine.models_with_statistics("x")
    with pytest.raises(InvalidArgumentError, match="requested model version is not available"):
        engine.models_with_statistics("m", "3")


def test_models_come_in_the_order_of_name_and_version(engine, serve):
    models = [serve(name=name, version=version).model for name, version in
              (("b", 10), ("b", 9), ("a", 1))]  # fmt: skip

    assert list(engine.models()) == models[::-1]


def test_bound_model_hides_all_versions_of_a_repository(engine, serve):
    kept = [serve(version=version).model for version in (1, 2)]
    bound = serve(version=1, bound=True).model
    late = serve(version=3).model

    assert list(engine.models()) == [bound]
    assert engine.lookup("m") is bound
    assert engine.find("m", "2") is None
    assert engine.ready_versions("m") == [1]
    assert engine.models_with_statistics("m") == [bound]
    engine.remove(bound)
    assert list(engine.models()) == [*kept, late]
    assert engine.lookup("m") is late


def test_bound_model_that_was_replaced_is_waited_for_until_it_is_removed(engine, serve):
    old = serve(bound=True).model
    new = serve(bound=True).model

    assert list(engine.models()) == [new]
    assert engine.draining == {old}
    engine.remove(old)
    assert engine.draining == set()
    assert engine.lookup("m") is new


def test_removed_model_leaves_no_trace_but_its_successor_stays(engine, serve):
    old = serve().model
    new = serve().model
    engine.remove(old)
    assert engine.lookup("m") is new

    engine.remove(new)

    assert list(engine.models()) == []
    with pytest.raises(NotFoundError, match="is not found"):
        engine.lookup("m")


def infer_refused(engine, **fields):
    """The error that a request is refused with."""
    sink = RecordingSink()
    assert engine.infer(request(**fields), sink).is_over
    (error,) = sink.refusals
    return error


def test_inference_that_does_not_fit_is_refused_before_the_model_hears(engine, serve):
    served = serve()

    refusal = infer_refused(engine, outputs=("y",))

    assert "unexpected inference output 'y'" in refusal.message
    assert served.model.statistics.pending_count == 0


@pytest.mark.parametrize("version", ["", "1"])
def test_server_that_exits_says_so_after_its_models_have_ended(engine, serve, version):
    served = serve()
    engine.refuse()
    served.model.stop()

    with pytest.raises(UnavailableError) as refusal:
        engine.lookup("m", version)

    assert refusal.value.message == "Server exiting"


def test_model_is_found_while_the_server_exits(engine, serve):
    served = serve()
    engine.refuse()

    assert engine.lookup("m", "1") is served.model


def test_request_that_no_model_took_may_be_paused_resumed_and_cancelled(engine):
    sink = RecordingSink()

    refused = engine.infer(request(), sink)
    for action in (refused.pause, refused.resume, refused.cancel):
        action()

    assert refused.is_over
    assert sink.final_count == 1


def test_refusal_that_its_sink_cannot_take_is_logged(engine, caplog):
    class Broken(RecordingSink):
        def on_refused(self, error):
            raise RuntimeError("a bug in a front end")

    assert engine.infer(request(), Broken()).is_over

    assert "a bug in a front end" in caplog.text


def test_inference_that_is_over_does_not_hold_its_sink(engine, serve, loop):
    served = serve()
    kept = engine.infer(request(), RecordingSink())
    reference = weakref.ref(kept.sink)
    loop.run()
    served.instance.finish()
    loop.run()

    assert kept.is_over
    assert reference() is None


def test_request_for_a_replaced_model_goes_to_its_successor(engine, serve, loop):
    old = serve()
    new = serve()
    old.model.become(VersionState.UNLOADING)
    late = engine.infer(request(), RecordingSink())
    loop.run()

    assert late.owner is new.model
    assert (old.instance.sizes, new.instance.sizes) == ([], [1])


def test_request_for_a_model_unloaded_meanwhile_is_refused(engine, serve):
    served = serve()
    engine.remove(served.model)
    served.model.stop()

    refusal = infer_refused(engine)

    assert isinstance(refusal, NotFoundError)
    assert "'m' is not found" in refusal.message


def test_request_for_a_model_that_died_meanwhile_is_refused(engine, serve):
    served = serve()
    served.instance.die()

    refusal = infer_refused(engine, model_version="1")

    assert isinstance(refusal, UnavailableError)
    assert "is not at ready state" in refusal.message


def run_on_loop(test):
    async def main():
        engine = Engine()
        served = Served(engine, asyncio.get_running_loop())
        await asyncio.wait_for(test(engine, served), 60)

    asyncio.run(main())


def test_unloaded_model_finishes_its_requests_and_takes_no_new_ones():
    async def test(engine, served):
        sinks = [RecordingSink() for _ in range(3)]
        for sink in sinks:
            engine.infer(request(), sink)
        unloading = asyncio.ensure_future(engine.unload(served.model))
        await asyncio.sleep(0)
        assert engine.draining == {served.model}
        assert served.model.state is VersionState.UNLOADING
        assert isinstance(infer_refused(engine), NotFoundError)
        for _ in sinks:
            served.instance.finish()

        await unloading

        assert [sink.errors for sink in sinks] == [[], [], []]
        assert (engine.draining, served.model.instances) == (set(), [])
        assert served.model.state is VersionState.UNAVAILABLE

    run_on_loop(test)


def test_unloading_that_takes_too_long_answers_the_rest():
    async def test(engine, served):
        sinks = [RecordingSink() for _ in range(2)]
        _, second = [engine.infer(request(), sink) for sink in sinks]
        second.cancel()

        await engine.unload(served.model, 0.01)

        assert len(sinks[0].errors) == 1
        assert isinstance(sinks[1].errors[0], CancelledError)

    run_on_loop(test)


def test_model_that_died_can_be_unloaded():
    async def test(engine, served):
        served.instance.die()

        await engine.unload(served.model)

        assert list(engine.models()) == []

    run_on_loop(test)


def test_retired_model_counts_until_it_is_forgotten(engine, serve):
    model = serve().model
    engine.begin_draining(model)
    assert engine.draining == {model}
    engine.end_draining(model)
    engine.end_draining(model)

    assert engine.draining == set()
