# SPDX-License-Identifier: Apache-2.0
"""Bound functions that run in processes of their own, which here are local workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import ErrorCode, UnavailableError
from pytriton.base.messages import InferTensor
from pytriton.base.settings import RayOptions
from pytriton.model_config import (
    ControlKind,
    ModelConfig,
    Ray,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
    Tensor,
)
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.models.binding import BindArguments, make_model
from pytriton.runtime.executor.launcher import WorkerLauncher
from pytriton.runtime.executor.worker import InstanceUnavailableError
from pytriton.runtime.functions import ray_model
from pytriton.runtime.transport.control import Bind, Unbind
from pytriton.serving.engine.model import VersionState
from pytriton.serving.repository.loading.plans import LoadTimeoutError
from pytriton.serving.repository.loading.python_version import RestartPolicy
from pytriton.serving.server.binding import function_loader
from pytriton.serving.server.binding.function_loader import FunctionLoader
from tests.executor.remote.plain_cluster import PlainCluster
from tests.fakes import RecordingSink, infer_request
from tests.server.binding.test_binder import Binder, answering

HERE = "tests.server.binding.functions_elsewhere"
X = [Tensor(name="x", dtype=np.float32, shape=(1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(1,))]


class ElsewhereBinder(Binder):
    """A server whose functions run in local worker processes."""

    def __init__(self):
        super().__init__()
        self.launcher = WorkerLauncher(self.loop)
        self.recovery = self.launcher.recovery
        self.problem: Exception | None = None
        self.specs = []
        self.launch_errors = []
        self.session._load_function = FunctionLoader(self._launcher, self.factory).load

    async def _launcher(self):
        if self.problem is not None:
            raise self.problem
        return self

    async def launch(self, spec):
        self.specs.append(spec)
        if self.launch_errors:
            raise self.launch_errors.pop()
        return await self.launcher.launch(spec)

    def send(self, function, inputs=X, outputs=Y, *, name="m", config=None, strict=None, **ray):
        text = function if ":" in function else f"{HERE}:{function}"
        given = BindArguments(name, text, inputs, outputs, None, config, strict, Ray(**ray))
        model = make_model(given)
        message = (model.message(), model.version, [], model.initial_states(), model.ray)
        return self.call(Bind, *message)

    def bind_elsewhere(self, function, *arguments, **settings):
        answer = self.answer(self.send(function, *arguments, **settings))
        assert answer.error == ""

    def error(self, function, *arguments, **settings):
        answer = self.answer(self.send(function, *arguments, **settings))
        assert self.engine.find("m") is None
        return answer

    def ask(self, x=1.0, name="m", **fields):
        sink = RecordingSink()
        data = np.full((1, 1), x, np.float32).tobytes()
        request = infer_request(name, {"x": InferTensor("x", FP32, (1, 1), data)}, **fields)
        self.engine.infer(request, sink)
        assert self.until(lambda: sink.final_count)
        return sink

    def values(self, x=1.0, **fields):
        sink = self.ask(x, **fields)
        assert sink.errors == []
        return [
            np.frombuffer(response.outputs[0].data, np.float32)[0]
            for response in sink.responses
            if response is not None and response.outputs
        ]

    def unbind(self, name="m"):
        assert self.answer(self.call(Unbind, name, 1)).error == ""

    @property
    def pids(self):
        return [instance.pid for instance in self.engine.lookup("m").instances]

    def end(self):
        self.close()


@pytest.fixture(scope="module")
def shared():
    """One server for all tests whose processes end well."""
    made = ElsewhereBinder()
    yield made
    made.loop.run_until_complete(made.session.close())
    made.loop.run_until_complete(made.launcher.close())
    made.close()


@pytest.fixture
def server(shared):
    shared.problem = None
    shared.specs.clear()
    yield shared
    for model in list(shared.engine.models()):
        shared.unbind(model.spec.name)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_function_answers_in_another_process_until_it_is_unbound(server):
    server.bind_elsewhere("pid_of")
    (pid,) = server.pids
    model = server.engine.lookup("m")

    assert server.values() == [pid]
    assert pid != os.getpid()
    assert model.is_bound
    assert model.statistics.load_ns > 0
    server.unbind()
    assert server.engine.find("m") is None
    assert is_gone(pid)


def test_instances_and_placement_are_those_of_the_argument(server):
    resources = {"num_cpus": 2, "num_gpus": 0.5, "resources": {"big": 1}, "start_timeout_s": 60}
    server.bind_elsewhere("pid_of", count=2, group_size=1, spread=False, **resources)

    assert len(set(server.pids)) == 2
    assert sorted(spec.instance_name for spec in server.specs) == ["m_0_0", "m_0_1"]
    spec = server.specs[0]
    assert (spec.model, spec.version) == ("m", 1)
    assert (spec.placement.num_cpus, spec.placement.num_gpus) == (2, 0.5)
    assert (spec.placement.resources, spec.placement.is_spread) == ({"big": 1}, False)
    assert spec.placement.start_timeout_s == 60


@pytest.mark.parametrize(
    "function, answer",
    [("Tripler", [6]), ("sleeping", [2]), ("counting", [1]), ("batch_size", [8])],
)
def test_callable_of_each_kind_answers(server, function, answer):
    server.bind_elsewhere(function, config=ModelConfig(max_batch_size=8))

    assert server.values(2.0) == answer


def test_coroutines_overlap_and_plain_functions_do_not(server):
    server.bind_elsewhere("sleeping")
    server.bind_elsewhere("pid_of", name="plain")

    (coroutines,) = server.engine.lookup("m").instances
    (plain,) = server.engine.lookup("plain").instances
    assert (coroutines.free_slots, plain.free_slots) == (256, 1)


def test_annotated_function_gets_values(server):
    server.bind_elsewhere("add", None, None, config=ModelConfig(batching=False))
    sink = RecordingSink()
    data = np.full(1, 2.0).tobytes()
    dtype = server.engine.lookup("m").spec.inputs["x"].dtype
    request = infer_request("m", {"x": InferTensor("x", dtype, (1,), data)})
    server.engine.infer(request, sink)
    assert server.until(lambda: sink.final_count)

    assert sink.errors == []
    assert np.frombuffer(sink.responses[0].outputs[0].data)[0] == 7


def test_sequences_have_their_controls_and_states(server):
    sequence = SequenceBatcher(
        controls=[SequenceControl(ControlKind.START)],
        states=[SequenceState("past", "next", np.float32, (1,))],
        max_sequence_idle_microseconds=60_000_000,
    )
    server.bind_elsewhere("accumulate", config=ModelConfig(sequence=sequence))

    assert server.values(2.0, correlation_id=7, flags=1) == [2]
    assert server.values(5.0, correlation_id=7, flags=2) == [7]


def test_warm_up_is_run_before_the_model_is_ready(server):
    warmup = ModelWarmup(
        name="w", batch_size=1, count=3, inputs={"x": WarmupInput(np.float32, (1,), zero_data=True)}
    )
    server.bind_elsewhere("counting", config=ModelConfig(model_warmup=[warmup]))

    assert server.values() == [4]


def test_outputs_are_checked_if_it_is_strict(server):
    server.bind_elsewhere("wrong_type", strict=True)

    (error,) = server.ask().errors
    assert "m_0_0" in error.message
    assert "int64" in error.message


def test_exception_of_a_function_is_answered_and_its_process_stays(server):
    server.bind_elsewhere("failing")
    pids = server.pids

    (error,) = server.ask().errors
    assert "Failed to process the request(s) for model 'm_0_0', message: ValueError: no" in (
        error.message
    )
    assert server.pids == pids


@pytest.mark.parametrize("is_killed", [True, False])
def test_instance_that_ended_is_replaced(server, is_killed):
    server.bind_elsewhere("unrecoverable", no_instance_timeout_s=0)
    (pid,) = server.pids
    if is_killed:
        os.kill(pid, signal.SIGKILL)
    else:
        (error,) = server.ask(-1.0).errors
        assert "PyTritonUnrecoverableError: out of memory" in error.message
    assert server.until(lambda: server.pids not in ([], [pid]))

    assert server.values() == server.pids


def test_model_that_is_bound_again_replaces_the_old_one(server):
    server.bind_elsewhere("pid_of")
    (pid,) = server.pids
    server.bind_elsewhere("Tripler")

    assert server.values(2.0) == [6]
    assert server.until(lambda: is_gone(pid))


def test_name_may_change_between_here_and_elsewhere(server):
    server.bind(answering(9))
    server.bind_elsewhere("Tripler")

    assert server.values(2.0) == [6]


# What goes wrong


@pytest.mark.parametrize(
    "function, code, texts",
    [
        (
            "no_such_module:f",
            ErrorCode.NOT_FOUND,
            ["'no_such_module'", "does not find", "Install it"],
        ),
        ("tests.no_such:f", ErrorCode.NOT_FOUND, ["'tests.no_such'", str(Path.cwd())]),
        ("no_such_function", ErrorCode.NOT_FOUND, ["'no_such_function'", f"{HERE}'"]),
        ("calls", ErrorCode.INVALID_ARG, [f"{HERE}:calls is of type int"]),
        (
            "broken_factory",
            ErrorCode.INTERNAL,
            ["RuntimeError: no weights here", "functions_elsewhere.py", "broken_factory"],
        ),
        ("subtract", ErrorCode.INVALID_ARG, ["takes a list of requests"]),
    ],
)
def test_function_that_cannot_be_loaded_is_told_in_words(server, function, code, texts, caplog):
    answer = server.error(function)

    assert answer.error.startswith("failed to load 'm' on the cluster: ")
    for text in texts:
        assert text in answer.error
    assert answer.error_code == code


def test_other_annotations_than_those_of_the_binding_process_are_refused(server):
    model = make_model(BindArguments("m", f"{HERE}:add", instances=Ray()))
    message, ray = model.message(), model.ray
    ray.function.config["input"][0]["name"] = "other"
    answer = server.answer(server.call(Bind, message, 1, [], {}, ray))

    assert "this node has another version of the module" in answer.error


def test_group_needs_a_factory(server):
    answer = server.error("pid_of", group_size=2)

    assert "Expected a factory" in answer.error


@pytest.mark.parametrize(
    "problem, code",
    [
        (UnavailableError("pip install 'pytriton[ray]'"), ErrorCode.UNAVAILABLE),
        (InstanceUnavailableError("no node has a free GPU"), ErrorCode.UNAVAILABLE),
        (RuntimeError("a bug"), ErrorCode.INTERNAL),
    ],
)
def test_cluster_that_cannot_be_used_is_told_in_words(server, problem, code, caplog):
    server.problem = problem
    answer = server.error("pid_of")

    assert (str(problem) in answer.error, answer.error_code) == (True, code)


def test_wrong_configuration_starts_nothing(server, monkeypatch):
    monkeypatch.setattr(ray_model, "_check_sequences", lambda *_: None)  # the server checks, too
    config = ModelConfig(sequence=SequenceBatcher())
    answer = server.error("pid_of", config=config, idempotent=True)

    assert "IDEMPOTENT" in answer.error
    assert server.specs == []


def test_start_that_takes_too_long_ends_its_process(server, monkeypatch):
    monkeypatch.setattr(function_loader, "_TIMEOUT_MARGIN_S", 0.0)
    answer = server.error("slow_factory", start_timeout_s=0.2)

    assert "it was not loaded within 0.2 s" in answer.error
    assert answer.error_code == ErrorCode.UNAVAILABLE


def test_replacement_that_found_no_free_place_is_no_crash_of_the_function(server):
    server.bind_elsewhere("pid_of")
    server.engine.lookup("m")._supervisor._policy = RestartPolicy(2)
    (pid,) = server.pids
    server.launch_errors = [LoadTimeoutError("no node had a free GPU")]
    os.kill(pid, signal.SIGKILL)

    assert server.until(lambda: server.pids not in ([], [pid]))
    assert server.values() == server.pids


def test_end_of_the_binding_process_ends_everything():
    server = ElsewhereBinder()
    server.bind_elsewhere("pid_of")
    (pid,) = server.pids
    server.send("slow_factory", name="slow")
    assert server.until(lambda: len(server.specs) == 2)
    model = server.engine.lookup("m")
    server.loop.run_until_complete(server.session.close())

    assert is_gone(pid)
    assert model.state is VersionState.UNAVAILABLE
    assert server.engine.find("slow") is None
    server.loop.run_until_complete(server.launcher.close())
    server.close()


# Over TCP, in processes that connect to the server


@pytest.fixture(scope="module")
def cluster():
    """A server whose functions run in processes that connect to it, as those of a cluster do."""
    made = ElsewhereBinder()
    executor = PlainCluster(RayOptions(), made.loop)
    made.session._load_function = FunctionLoader(executor.launcher, made.factory).load
    yield made
    made.loop.run_until_complete(made.session.close())
    made.loop.run_until_complete(executor.close())
    made.close()


@pytest.fixture
def connected(cluster):
    yield cluster
    for model in list(cluster.engine.models()):
        cluster.unbind(model.spec.name)


def test_function_answers_over_tcp(connected):
    connected.bind_elsewhere("three_times", config=ModelConfig(decoupled=True))

    assert connected.values(4.0) == [4, 5, 6]


def test_load_error_says_where_over_tcp(connected):
    answer = connected.error("no_such_module:f")

    assert answer.error_code == ErrorCode.NOT_FOUND
    assert "'no_such_module'" in answer.error


@pytest.mark.parametrize("function, answer", [("summed_by_ranks", 7), ("idle_followers", None)])
def test_group_is_one_instance_whose_factory_is_called_in_every_rank(connected, function, answer):
    connected.bind_elsewhere(function, group_size=3)
    (value,) = connected.values(1.0)

    assert value == (answer or connected.pids[0])
    assert len(connected.engine.lookup("m").instances) == 1


def test_group_ends_if_the_function_of_a_rank_raises_and_is_replaced(connected, caplog):
    connected.bind_elsewhere("summed_by_ranks", group_size=2, no_instance_timeout_s=0)
    (pid,) = connected.pids
    assert connected.ask(-1.0).errors
    assert connected.until(lambda: connected.pids not in ([], [pid]))

    assert connected.values(1.0) == [4]
    cause = "The function of rank 1 raised: ArithmeticError: a rank that cannot go on"
    assert connected.until(lambda: cause in caplog.text)
