# SPDX-License-Identifier: Apache-2.0
"""Models that call themselves or one another: refused where nobody could ever answer."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base.dtypes import BYTES, INT32
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import BatcherSpec, ModelTensor, QueuePolicySpec
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.config import spec_from_config
from pytriton.serving.engine.ensemble.ensemble_model import EnsembleModel
from pytriton.serving.engine.ensemble.graph import make_graph
from pytriton.serving.engine.validation import MANY_STRINGS
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step
from tests.fakes import RecordingSink, request, response
from tests.repository.calling import World


@pytest.fixture
def world():
    return World()


def is_refused(world, instance, name, **fields):
    errors = refusals(world, instance, name, **fields)
    return len(errors) == 1 and "never be answered" in errors[0].message


def refusals(world, instance, name, **fields):
    sink = RecordingSink()
    world.call(instance, name, sink, **fields)
    assert sink.final_count == len(sink.refusals)
    return sink.refusals


def _depth(instance):
    return instance.running[0].inferences[0].request.call_depth if instance.running else -1


def test_model_with_one_instance_cannot_call_itself(world):
    model = world.add("loop")
    instance = world.ask(model)

    (error,) = refusals(world, instance, "loop")

    assert error.message == (
        "Model loop - Error when running inference: the call would never be answered, as all "
        "1 instance(s) of model 'loop' wait for calls that they made themselves. Models that call "
        "themselves, or one another in a circle, need more instances."
    )


def test_refused_call_leaves_nothing_behind(world):
    model = world.add("loop")
    instance = world.ask(model)
    assert is_refused(world, instance, "loop")
    assert len(world.caller.waits) == 0
    assert model.statistics.pending_count == 0

    instance.finish()

    assert world.ask(model) is instance
    assert len(instance.running[0].inferences) == 1


def test_recursion_goes_as_deep_as_there_are_instances(world):
    model = world.add("loop", instances=4)
    instance = world.ask(model)
    sinks = []
    for _ in range(3):
        sinks.append(RecordingSink())
        world.call(instance, "loop", sinks[-1])
        instance = max(model.instances, key=_depth)
    assert is_refused(world, instance, "loop")

    for each in sorted(model.instances, key=_depth, reverse=True):
        each.finish()

    assert [sink.final_count for sink in sinks] == [1, 1, 1]
    assert len(world.caller.waits) == 0


def test_two_models_cannot_wait_for_each_other(world):
    first, second = world.add("first"), world.add("second")
    one = world.ask(first)
    assert not is_refused(world, one, "second")
    (two,) = second.instances

    assert is_refused(world, two, "first")
    assert not is_refused(world, two, "first", blocked_batch=0)


def test_call_waits_for_an_instance_that_is_only_busy(world):
    model, other = world.add("busy"), world.add("other")
    world.ask(model)
    instance = world.ask(other)

    assert not is_refused(world, instance, "busy")


def test_call_behind_others_in_the_queue_is_seen(world):
    """The first call was taken while an instance was free, but a client was before it."""
    model = world.add("loop", instances=2)
    first = world.ask(model)
    sink = RecordingSink()
    second = next(each for each in model.instances if each is not first)
    world.ask(model)
    world.call(first, "loop", sink)

    assert is_refused(world, second, "loop")

    second.finish()
    assert sink.final_count == 0
    second.finish()

    assert sink.final_count == 1


def test_stream_waits_only_for_its_first_response(world):
    source = world.add("source", decoupled=True)
    caller = world.add("caller")
    instance = world.ask(caller)
    world.call(instance, "source", RecordingSink(), is_decoupled=True)
    assert len(world.caller.waits) == 1
    (streaming,) = source.instances

    streaming.report(streaming.running[0], [Outcome(0, response(), is_final=False)])

    assert len(world.caller.waits) == 0
    assert not is_refused(world, streaming, "caller")


def test_call_that_times_out_in_the_queue_is_not_refused(world):
    policy = QueuePolicySpec(default_timeout_us=1000)
    model = world.add("loop", batches=True, batcher=BatcherSpec(default_queue_policy=policy))
    instance = world.ask(model)

    assert not is_refused(world, instance, "loop")


def test_call_waits_for_an_instance_that_will_be_replaced(world):
    model = world.add("loop", instances=2, replaces=True)
    instance = world.ask(model)
    next(each for each in model.instances if each is not instance).die()

    assert not is_refused(world, instance, "loop")


def test_end_of_the_caller_ends_its_waiting(world):
    caller, slow = world.add("caller"), world.add("slow")
    instance = world.ask(caller)
    call = world.call(instance, "slow", RecordingSink())
    call.cancel()
    slow.instances[0].finish()

    assert len(world.caller.waits) == 0


def test_chain_of_overlapping_calls_has_an_end():
    world = World(max_depth=3)
    model = world.add("loop", concurrency=100)
    instance = world.ask(model)
    for depth in (1, 2, 3):
        world.call(instance, "loop", RecordingSink(), blocked_batch=0, batch=depth)

    (error,) = refusals(world, instance, "loop", blocked_batch=0, batch=4)

    assert error.message == (
        "Model loop - Error when running inference: models call one another 4 deep, of which at "
        "most 3 are allowed; 'loop_0_0' made the last call"
    )


def test_call_of_a_batch_that_is_over_begins_a_chain(world):
    model = world.add("loop", concurrency=100)
    instance = world.ask(model)
    world.call(instance, "loop", RecordingSink(), blocked_batch=0, batch=77)

    assert instance.running[-1].inferences[0].request.call_depth == 1


# Coroutines


def await_call(world, instance, name, batch):
    """Let a coroutine await a call; the sink of it."""
    sink = RecordingSink()
    world.call(instance, name, sink, blocked_batch=0, batch=batch)
    return sink


def was_refused_later(sink):
    return sink.final_count == 1 and "never be answered" in sink.errors[0].message


def test_chains_that_take_all_slots_end_in_an_error(world):
    model = world.add("loop", concurrency=4)
    instance = world.ask(model)
    for _ in range(3):
        world.ask(model)
    sinks = [await_call(world, instance, "loop", batch) for batch in (1, 2, 3)]
    assert [sink.final_count for sink in sinks] == [0, 0, 0]

    assert is_refused(world, instance, "loop", blocked_batch=0, batch=4)

    for _ in range(5):
        instance.finish(instance.running[-1])
    assert [sink.final_count for sink in sinks] == [1, 1, 1]
    assert len(world.caller.waits) == 0


def test_coroutine_that_gathers_calls_waits_while_one_can_be_answered(world):
    model, other = world.add("loop"), world.add("other")
    instance = world.ask(model)
    quick = await_call(world, instance, "other", 1)
    stuck = await_call(world, instance, "loop", 1)
    assert stuck.final_count == 0

    other.instances[0].finish()
    world.loop.run()

    assert quick.final_count == 1
    assert was_refused_later(stuck)
    assert len(world.caller.waits) == 0
    assert model.statistics.pending_count == 0


def test_call_that_was_answered_meanwhile_is_not_refused(world):
    model, other = world.add("loop"), world.add("other")
    instance = world.ask(model)
    await_call(world, instance, "other", 1)
    stuck = await_call(world, instance, "loop", 1)

    other.instances[0].finish()
    instance.finish()
    world.loop.run()
    instance.finish()

    assert (stuck.final_count, stuck.errors) == (1, [])


def test_coroutine_and_thread_cannot_wait_for_each_other(world):
    awaiting, blocking = world.add("awaiting", concurrency=256), world.add("blocking")
    two = world.ask(blocking)
    world.call(two, "awaiting", RecordingSink())
    (one,) = awaiting.instances

    assert is_refused(world, one, "blocking", blocked_batch=0, batch=1)


def test_coroutine_that_blocks_the_loop_cannot_call_its_own_instance(world):
    model = world.add("loop", concurrency=256)
    instance = world.ask(model)

    assert is_refused(world, instance, "loop", blocked_batch=1, blocks_loop=True)


def test_call_is_refused_when_it_went_to_the_instance_that_waits_for_it(world):
    model = world.add("loop", instances=2, concurrency=256)
    instance, other = world.ask(model), world.ask(model)
    sink = RecordingSink()

    world.call(instance, "loop", sink, blocked_batch=1, blocks_loop=True)
    assert (len(instance.running), len(other.running)) == (2, 1)
    world.loop.advance(0.01)

    assert was_refused_later(sink)
    assert len(world.caller.waits) == 0


def test_call_that_went_to_another_instance_waits(world):
    model = world.add("loop", instances=2, concurrency=256)
    instance = world.ask(model)
    (other,) = set(model.instances) - {instance}
    sink = RecordingSink()

    world.call(instance, "loop", sink, blocked_batch=1, blocks_loop=True)
    world.loop.advance(0.01)
    assert sink.final_count == 0
    other.finish()

    assert (sink.final_count, sink.errors) == (1, [])


def empty_strings(count):
    return {"IN": InferTensor("IN", BYTES, (count,), bytes(4 * count))}


class RefusedSink(RecordingSink):
    """Tells when it was refused."""

    def __init__(self):
        super().__init__()
        self.refused = asyncio.Event()

    def on_refused(self, error):
        super().on_refused(error)
        self.refused.set()


def test_call_with_many_strings_to_itself_is_refused_after_they_were_counted():
    async def scenario() -> None:
        world, sink = World(), RefusedSink()
        spec = ModelTensor(name="IN", dtype=BYTES, dims=(-1,), shape=(-1,), has_variable_dims=True)
        model = world.add("loop", inputs={"IN": spec})
        asked = request(model_name="loop", inputs=empty_strings(1))
        world.engine.infer(asked, RecordingSink())
        world.loop.run()
        world.call(model.instances[0], "loop", sink, inputs=empty_strings(MANY_STRINGS + 1))
        await asyncio.wait_for(sink.refused.wait(), 60)

        assert "never be answered" in sink.refusals[0].message
        assert sink.final_count == 1
        assert len(world.caller.waits) == 0
        assert model.statistics.pending_count == 0

    asyncio.run(scenario())


def add_step(world, name):
    """Serve a model that has an output."""
    output = ModelTensor(name="OUT", dtype=INT32, dims=(1,), shape=(1,))
    return world.add(name, outputs={"OUT": output})


def add_ensemble(world, *steps):
    """Serve an ensemble `e` of models that the world has, one after the other."""
    tensors = ["IN", *(f"t{number}" for number in range(1, len(steps))), "OUT"]
    config = ensemble_config(
        *(
            step(name, {"IN": tensors[number]}, {"OUT": tensors[number + 1]})
            for number, name in enumerate(steps)
        ),
        inputs=["IN"],
        outputs=["OUT"],
        max_batch_size=0,
        data_type="TYPE_INT32",
        dims=[1],
    )
    models = {
        name: model_config(name, max_batch_size=0, data_type="TYPE_INT32", dims=[1])
        for name in steps
    }
    model = EnsembleModel(spec_from_config(config, 1), make_graph(config, models), world.engine)
    world.engine.add(model)
    world.engine.set_ready(model)
    return model


def test_step_of_an_ensemble_cannot_call_the_ensemble(world):
    instance = world.ask(add_step(world, "loop"))
    ensemble = add_ensemble(world, "loop")

    (error,) = refusals(world, instance, "e")

    assert error.message == (
        "Model e - Error when running inference: the call would never be answered, as all "
        "instances of a step of ensemble 'e' wait for calls that they made themselves. Models "
        "that call themselves, or one another in a circle, need more instances."
    )
    assert len(world.caller.waits) == 0
    assert not ensemble.is_busy


def test_call_is_refused_when_a_later_step_of_the_ensemble_waits_for_the_caller(world):
    first = add_step(world, "first")
    instance = world.ask(add_step(world, "loop"))
    add_ensemble(world, "first", "loop")
    sink = RecordingSink()
    world.call(instance, "e", sink)
    assert sink.final_count == 0

    (running,) = first.instances
    output = InferTensor("OUT", INT32, (1,), bytes(4))
    running.report(running.running[0], [Outcome(0, InferResponse("m", "1", "", [output]))])
    world.loop.run()

    assert len(sink.refusals) == 1
    assert "never be answered" in sink.refusals[0].message
    assert len(world.caller.waits) == 0
