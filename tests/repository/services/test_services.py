# SPDX-License-Identifier: Apache-2.0
"""What one worker asks of the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytriton.base.errors import (
    UNEXPECTED,
    ErrorCode,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from pytriton.runtime.transport.frames import InferCallFrame, WorkerLogLine
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.repository.services import model_services
from pytriton.serving.repository.services.custom_metrics import CustomMetrics
from pytriton.serving.repository.services.model_services import (
    ModelServices,
    SharedServices,
    WorkerLog,
)
from pytriton.testing import FakeClock
from tests.fakes import RecordingSink
from tests.repository.calling import World, tensors


class FakeControl:
    """Keeps what it was asked for; an error to raise can be set."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        return []

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.asked.append(("load", name, config, files))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append(("unload", name, unload_dependents))

    def is_ready(self) -> bool:
        return True


class Desk:
    """The services of one worker, and what they replied."""

    def __init__(self, loop: Any = None) -> None:
        self.world = World()
        self.control = FakeControl()
        self.metrics = CustomMetrics()
        self.shared = SharedServices(
            self.world.engine, self.control, self.metrics, loop or self.world.loop
        )
        self.services = ModelServices(self.shared, "m", "m_0_0")
        self.replies: list[tuple[Any, str | None]] = []

    def serve(self, action: str, **arguments: Any) -> None:
        self.services.serve(action, arguments, self._reply)

    def _reply(self, value: Any, error: str | None) -> None:
        self.replies.append((value, error))


@pytest.fixture
def desk():
    return Desk()


def in_time(scenario: Callable[[Desk], None]) -> Desk:
    """Let a scenario ask for something, and wait until it was answered."""

    async def run() -> Desk:
        desk = Desk(asyncio.get_running_loop())
        scenario(desk)
        for _ in range(5):
            await asyncio.sleep(0)
        assert "0 running" in repr(desk.shared)
        return desk

    return asyncio.run(run())


def call(name: str, **fields: Any) -> InferCallFrame:
    return InferCallFrame(1, name, -1, [TensorRef("IN", 0, (), 0, 0)], **fields)


def test_metrics_are_made_and_read(desk):
    desk.serve("new_family", family=1, name="f", description="d", kind="COUNTER")
    desk.serve("new_metric", family=1, metric=2, labels={"a": "b"}, buckets=None)
    desk.services.serve("increment", {"metric": 2, "value": 2.5}, None)
    desk.serve("value", metric=2)

    assert desk.replies == [(None, None), (None, None), (2.5, None)]


def test_refusal_is_replied_with_the_bare_text(desk):
    desk.serve("new_family", family=1, name="a b", description="", kind="GAUGE")

    assert desk.replies == [(None, "Invalid metric name")]


def test_refusal_that_nobody_waits_for_is_logged(desk, caplog):
    desk.services.serve("observe", {"metric": 9, "value": 1.0}, None)

    assert "m_0_0: observe failed: the metric has been deleted" in caplog.text


def test_worker_that_is_gone_has_no_metrics(desk):
    desk.serve("new_family", family=1, name="f", description="d", kind="COUNTER")
    desk.services.close()

    assert len(desk.metrics) == 0


def test_unknown_service_is_refused_with_those_there_are(desk):
    with pytest.raises(InvalidArgumentError, match="no service 'reboot', only increment, set"):
        desk.serve("reboot")


def test_caller_in_a_sandbox_hears_that_its_tensors_go_through_the_host(desk):
    ledger = SimpleNamespace(refusal="sandbox")
    desk.services.instance = SimpleNamespace(device_ledger=ledger)
    desk.serve("device_taking", name="nobody", version="")

    assert desk.replies == [({"gpu": b"", "reason": "sandbox"}, None)]


def test_model_that_is_not_there_is_described_by_its_error(desk):
    desk.serve("describe_model", name="nobody", version="")

    text = "Request for unknown model: 'nobody' is not found"
    assert desk.replies == [({"error": text, "code": int(ErrorCode.NOT_FOUND)}, None)]


def test_model_is_loaded_with_its_files():
    desk = in_time(
        lambda desk: desk.serve("load_model", name="a", config="{}", files={"1/model.py": b"x"})
    )

    assert desk.control.asked == [("load", "a", "{}", {"1/model.py": b"x"})]
    assert desk.replies == [(None, None)]


def test_model_without_a_configuration_is_loaded_with_its_own():
    desk = in_time(lambda desk: desk.serve("load_model", name="a", config="", files={}))

    assert desk.control.asked == [("load", "a", None, {})]


def test_model_is_unloaded_with_those_that_need_it():
    desk = in_time(lambda desk: desk.serve("unload_model", name="a", unload_dependents=True))

    assert desk.control.asked == [("unload", "a", True)]
    assert desk.replies == [(None, None)]


def test_model_that_cannot_be_loaded_is_replied_with_the_servers_text():
    def scenario(desk: Desk) -> None:
        desk.control.error = InternalError("failed to load 'a'")
        desk.serve("load_model", name="a", config="", files={})

    assert in_time(scenario).replies == [(None, "failed to load 'a'")]


def test_failure_of_the_server_is_replied_and_logged(caplog):
    def scenario(desk: Desk) -> None:
        desk.control.error = OSError("disk full")
        desk.serve("unload_model", name="a", unload_dependents=False)

    assert in_time(scenario).replies == [(None, UNEXPECTED)]
    assert "error in the server while it served unload_model to instance m_0_0" in caplog.text
    assert "OSError: disk full" in caplog.text


@pytest.mark.parametrize(
    "action,arguments",
    [
        ("load_model", {"name": "a", "config": "", "files": {}}),
        ("unload_model", {"name": "a", "unload_dependents": False}),
    ],
)
def test_change_is_replied_when_all_front_ends_know_it(action, arguments):
    async def run() -> None:
        desk = Desk(asyncio.get_running_loop())
        front_ends = asyncio.Event()

        async def settled() -> None:
            assert desk.control.asked, "the change comes first"
            await front_ends.wait()

        desk.world.engine.settled = settled
        desk.serve(action, **arguments)
        for _ in range(5):
            await asyncio.sleep(0)
        assert desk.replies == []

        front_ends.set()
        for _ in range(5):
            await asyncio.sleep(0)

        assert desk.replies == [(None, None)]

    asyncio.run(run())


def test_load_goes_on_without_the_worker_that_asked():
    def scenario(desk: Desk) -> None:
        desk.services.serve("load_model", {"name": "a", "config": "", "files": {}}, None)
        desk.services.close()

    desk = in_time(scenario)
    assert [asked[:2] for asked in desk.control.asked] == [("load", "a")]


@pytest.mark.parametrize(
    "name,version,expected",
    [
        ("a", "", (True, None)),
        ("a", "1", (True, None)),
        ("a", "2", (False, None)),
        ("unknown", "", (False, None)),
    ],
)
def test_readiness_of_models_is_told(name, version, expected):
    def scenario(desk: Desk) -> None:
        desk.world.add("a")
        desk.serve("is_model_ready", name=name, version=version)

    assert in_time(scenario).replies == [expected]


def test_version_that_is_no_number_is_refused():
    ((value, error),) = in_time(
        lambda desk: desk.serve("is_model_ready", name="a", version="x")
    ).replies

    assert value is None
    assert error is not None
    assert "version should be an integral value > 0" in error


@pytest.mark.parametrize("is_ready", [True, False])
def test_model_has_the_last_word_on_its_readiness(is_ready):
    async def check() -> bool:
        return is_ready

    def scenario(desk: Desk) -> None:
        desk.world.add("a", check=check)
        desk.serve("is_model_ready", name="a", version="")

    assert in_time(scenario).replies == [(is_ready, None)]


def test_inference_is_made_for_the_workers_instance(desk):
    desk.services.instance = desk.world.ask(desk.world.add("caller"))
    (called,) = desk.world.add("other").instances
    sink = RecordingSink()
    desk.services.infer(call("other", blocked_batch=1), tensors(), sink)
    desk.world.loop.run()
    assert repr(desk.shared) == "<SharedServices 0 running, 1 wait>"

    called.finish()

    assert sink.final_count == 1
    assert repr(desk.shared) == "<SharedServices 0 running, 0 wait>"


def test_inference_that_cannot_be_made_is_refused(desk):
    sink = RecordingSink()
    desk.services.infer(call("nope"), tensors(), sink)

    (error,) = sink.refusals
    assert "unknown model: 'nope' is not found" in error.message


@pytest.mark.parametrize(
    "level,expected",
    [
        ("INFO", logging.INFO),
        ("WARNING", logging.WARNING),
        ("ERROR", logging.ERROR),
        ("VERBOSE", logging.DEBUG),
    ],
)
def test_log_line_comes_from_the_models_file_and_line(desk, caplog, level, expected):
    with caplog.at_level(logging.DEBUG):
        desk.services.log(WorkerLogLine(level, "100 % done %s", "models/m/1/model.py", 42))

    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (expected, "100 % done %s")
    assert (record.name, record.pathname, record.lineno) == ("m_0_0", "model.py", 42)


@pytest.mark.parametrize(
    "text, message",
    [
        ("it failed: ValueError: x\n{}", "it failed: ValueError: x"),
        ("{}", "ValueError: x"),
        ("{}\n", "ValueError: x"),
    ],
)
def test_traceback_in_a_log_line_is_kept_apart_from_its_message(desk, caplog, text, message):
    trace = 'Traceback (most recent call last):\n  File "model.py"\nValueError: x'
    desk.services.log(WorkerLogLine("ERROR", text.format(trace), "model.py", 42))

    (record,) = caplog.records
    assert record.getMessage() == message
    assert record.exc_text.rstrip() == trace


def test_verbose_line_is_left_out_where_nobody_wants_it(desk, caplog):
    with caplog.at_level(logging.INFO):
        desk.services.log(WorkerLogLine("VERBOSE", "detail", "model.py", 1))

    assert caplog.records == []


def test_model_that_is_being_loaded_cannot_load_itself():
    desk = in_time(lambda desk: desk.serve("load_model", name="m", config="", files={}))

    assert desk.control.asked == []
    ((value, error),) = desk.replies
    assert value is None
    assert error.startswith("model 'm' cannot wait for 'm' to be loaded while")


def test_model_that_serves_may_load_itself():
    def scenario(desk: Desk) -> None:
        desk.services.is_loading = False
        desk.serve("load_model", name="m", config="", files={})

    assert in_time(scenario).control.asked == [("load", "m", None, {})]


@pytest.mark.parametrize(
    "action,arguments",
    [
        ("set", {"metric": 2, "value": "x\nforged 2"}),
        ("set", {"metric": 2, "value": [1]}),
        ("set", {"metric": 2}),
        ("set", {"metric": 2, "value": 1.0, "other": 1}),
        ("new_family", {"family": 3, "name": "h", "description": 5, "kind": "GAUGE"}),
        ("new_metric", {"family": 1, "metric": 3, "labels": {"a": 5}, "buckets": None}),
        ("new_metric", {"family": 1, "metric": 3, "labels": {"a": None}, "buckets": None}),
        ("new_metric", {"family": 1, "metric": 3, "labels": {}, "buckets": ["x"]}),
        ("describe_model", {"name": ["x"], "version": None}),
        ("load_model", {"name": "a", "config": "", "files": {"x": 1}}),
    ],
)
def test_arguments_of_other_types_are_refused(desk, action, arguments):
    desk.serve("new_family", family=1, name="f", description="d", kind="GAUGE")
    desk.serve("new_metric", family=1, metric=2, labels={}, buckets=None)
    with pytest.raises(InvalidArgumentError, match=f"expected the arguments of service '{action}'"):
        desk.serve(action, **arguments)
    desk.serve("value", metric=2)

    assert desk.replies[-1] == (0.0, None)


def test_services_that_take_time_are_limited(monkeypatch):
    monkeypatch.setattr(model_services, "MAX_RUNNING", 2)

    def scenario(desk: Desk) -> None:
        for _ in range(2):
            desk.serve("is_model_ready", name="a", version="")
        with pytest.raises(UnavailableError, match="at most 2 services"):
            desk.serve("is_model_ready", name="a", version="")

    assert len(in_time(scenario).replies) == 2


def written(caplog, **fields):
    """The record of a line of a worker."""
    line = WorkerLogLine(**{"level": "INFO", "message": "m", "file": "a.py", "line": 1, **fields})
    with caplog.at_level(logging.DEBUG):
        WorkerLog("m_0_0", "m").write(line)
    (record,) = caplog.records
    return record


@pytest.mark.parametrize(
    "file,expected",
    [
        ("/models/m/1/model.py", "model.py"),
        ('x.py:1] "ok"\nE1119 00:00:00.000000 1 control.py:1] "forged', None),
        ("/../../\x1b[2J.py", "\\u001b[2J.py"),
        ("x" * 1000, "x" * 255),
    ],
)
def test_file_of_a_line_is_a_name_without_control_characters(caplog, file, expected):
    name = written(caplog, file=file).filename

    assert name.isprintable()
    assert expected in (None, name)


@pytest.mark.parametrize(
    "created",
    [float("nan"), float("inf"), 1e300, -1e300, -5.0, 1.0, 5e9],  # 5e9 is in 2128
)
def test_line_of_another_time_has_that_of_its_arrival(caplog, created):
    assert abs(written(caplog, created=created).created - time.time()) < 60


def test_line_that_was_printed_before_has_its_time(caplog):
    created = time.time() - 30

    assert written(caplog, created=created).created == created


def test_line_says_of_itself_what_it_may(caplog):
    record = written(
        caplog,
        level="ERROR\nforged",
        message="x" * 300_000,
        line=-5,
        process=-(2**63),
        model="other",
        request_ids=["i" * 1000] * 2000,
    )

    assert record.levelno == logging.INFO
    assert (record.lineno, record.triton_process, record.triton_model) == (0, 0, "m")
    assert record.getMessage().endswith("x... (37856 more characters)")
    assert len(record.triton_request_ids) == 1000
    assert {len(each) for each in record.triton_request_ids} == {255}


def test_long_line_counts_as_many(caplog):
    log = WorkerLog("m_0_0", "m", FakeClock())
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            log.write(WorkerLogLine("INFO", "x" * 1_000_000, "a.py", 1))

    assert len(caplog.records) == 76  # of 263 lines each


def test_refusals_that_nobody_hears_count_as_lines(desk, caplog, monkeypatch):
    monkeypatch.setattr(model_services, "_LINES_AT_ONCE", 20)
    for number in range(1000):
        desk.services.serve("set", {"metric": number, "value": 1.0}, None)

    assert 1 <= len(caplog.records) < 1000
    assert caplog.records[0].getMessage() == "m_0_0: set failed: the metric has been deleted"


def test_lines_that_are_too_many_are_left_out_and_counted(caplog):
    clock = FakeClock()
    log = WorkerLog("m_0_0", "m", clock)
    line = WorkerLogLine("INFO", "m", "a.py", 1)
    with caplog.at_level(logging.INFO):
        for _ in range(20_100):
            log.write(line)
        assert len(caplog.records) == 20_000
        clock.advance(1.0)
        for _ in range(3000):
            log.write(line)

    assert len(caplog.records) == 22_001
    text = "m_0_0: 100 lines were left out here, as it wrote more than 2000 a second"
    assert caplog.records[20_000].getMessage() == text
