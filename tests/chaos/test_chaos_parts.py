# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the harness: schedules, time lines, comparisons of snapshots, reports."""

from __future__ import annotations

import dataclasses
import types
from unittest import mock

import pytest

from tests.chaos.clients import Watched
from tests.chaos.judge import ChaosOracle
from tests.chaos.processes import Process, Role, parse_stat, role_of
from tests.chaos.report import Finding, SceneReport, scene_text
from tests.chaos.resources import MIB, Held, Snapshot, growth
from tests.chaos.schedule import Kind, Scene, ServerKind, kinds_of, make_schedule, scenes
from tests.chaos.timeline import Event, Timeline
from tests.workload import calls, models
from tests.workload.calls import Call, End
from tests.workload.oracle import Cause

SCENE = Scene(ServerKind.REPOSITORY, 2, 7, 300.0)
SERVER = Held(10, Role.SERVER, {"socket": 20, "memfd": 2}, 60 * MIB, 3)
WORKER = Held(11, Role.WORKER, {"socket": 2}, 20 * MIB, 1)
BEFORE = Snapshot({"server": SERVER, "worker add_0_0": WORKER}, 0, frozenset(), frozenset())


# Schedules


def test_schedule_follows_from_its_seed():
    other = dataclasses.replace(SCENE, seed=8)

    assert make_schedule(SCENE) == make_schedule(SCENE)
    assert make_schedule(SCENE) != make_schedule(other)


def test_schedule_is_in_order_and_within_its_scene():
    times = [fault.at_s for fault in make_schedule(SCENE)]

    assert len(times) > 100
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < SCENE.duration_s


def test_long_schedule_has_every_fault_of_its_scene():
    found = {fault.kind for fault in make_schedule(dataclasses.replace(SCENE, duration_s=3000.0))}

    assert found == set(kinds_of(SCENE))


@pytest.mark.parametrize(
    "scene, missing",
    [
        (dataclasses.replace(SCENE, front_ends=0), Kind.KILL_FRONT_END),
        (dataclasses.replace(SCENE, server=ServerKind.BOUND), Kind.KILL_WORKER),
        (SCENE, Kind.STOP_SCRIPT),
        (dataclasses.replace(SCENE, can_fill_disk=False), Kind.FILL_DISK),
    ],
)
def test_scene_leaves_out_faults_that_have_nothing_to_hit(scene, missing):
    assert missing not in kinds_of(scene)


def test_chosen_kinds_are_the_only_ones():
    found = {fault.kind for fault in make_schedule(SCENE, [Kind.KILL_WORKER, Kind.STOP_SCRIPT])}

    assert found == {Kind.KILL_WORKER}


def test_scenes_share_the_time():
    found = scenes(4.0, 1, [0, 2], list(ServerKind), can_fill_disk=True)

    assert [(each.server.value, each.front_ends) for each in found] == [
        ("bound", 0),
        ("repository", 0),
        ("bound", 2),
        ("repository", 2),
    ]
    assert {each.duration_s for each in found} == {60.0}


# Processes


@pytest.mark.parametrize(
    "title, role, name",
    [
        ("triton_python_backend_stub add_two_0_1", Role.WORKER, "add_two_0_1"),
        ("pytriton front end 1", Role.FRONT_END, "1"),
        ("pytriton zygote of workers", Role.WORKER_ZYGOTE, ""),
        ("python -m pytriton.runtime.worker_process.zygote", Role.WORKER_ZYGOTE, ""),
        ("pytriton zygote of front ends", Role.FRONT_END_ZYGOTE, ""),
        ("python -c from pytriton.serving.server.codec.child import main", Role.CODEC, ""),
        ("python -m pytriton.server --http-port=1", Role.SERVER, ""),
        ("sleep 600", Role.OTHER, ""),
    ],
)
def test_title_tells_the_role(title, role, name):
    assert role_of(title) == (role, name)


def test_worker_knows_its_model():
    worker = Process(1, 2, 3, "S", Role.WORKER, "add_two_0_1")

    assert worker.model == "add_two"
    assert worker.key == "worker add_two_0_1"


def test_stat_of_a_process_with_an_odd_name():
    stat = parse_stat("12 (a) b (c) Z 7 12 34 " + "0 " * 15 + "99 0")

    assert (stat.parent, stat.session, stat.state, stat.started_ticks) == (7, 34, "Z", 99)


# Snapshots


def test_equal_snapshots_have_no_growth():
    assert growth(BEFORE, BEFORE) == []


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"descriptors": {"socket": 40, "memfd": 2}}, "40 descriptors of kind socket, before 20"),
        ({"descriptors": {"socket": 20, "memfd": 12}}, "12 descriptors of kind memfd, before 2"),
        ({"threads": 12}, "12 threads, before 3"),
        ({"rss_bytes": 400 * MIB}, "400.0 MiB of memory, before 60.0 MiB"),
        ({"is_zombie": True}, "process 10 (server) is a zombie"),
    ],
)
def test_growth_of_a_process_is_named(change, sentence):
    processes = {**BEFORE.processes, "server": dataclasses.replace(SERVER, **change)}

    (found,) = growth(BEFORE, dataclasses.replace(BEFORE, processes=processes))

    assert sentence in found


def test_processes_that_are_more_or_missing_are_named():
    after = dataclasses.replace(BEFORE, processes={"server": SERVER, "other": WORKER})

    assert growth(BEFORE, after) == [
        "process 11 (other) is more than before",
        "process worker add_0_0 is missing",
    ]


def test_process_on_demand_may_come_and_go():
    codec = {"codec": Held(12, Role.CODEC, {}, MIB, 1)}
    with_it = dataclasses.replace(BEFORE, processes={**BEFORE.processes, **codec})

    assert growth(BEFORE, with_it) == []
    assert growth(with_it, BEFORE) == []


@pytest.mark.parametrize(
    "change, sentence",
    [
        (
            {"memfd_bytes": 200 * MIB},
            "shared memory of all processes grew from 0.0 MiB to 200.0 MiB",
        ),
        ({"temporary_files": frozenset(["a"])}, "temporary file a is left"),
        ({"shared_memory_files": frozenset(["a"])}, "file in /dev/shm a is left"),
    ],
)
def test_memory_and_files_that_are_left_are_named(change, sentence):
    assert growth(BEFORE, dataclasses.replace(BEFORE, **change)) == [sentence]


# Time lines and what they explain


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def make_call(kind=calls.Kind.INFER, model="double"):
    return Call(1, kind, calls.Port.HTTP, model, models.rows_of(1))


def finish(oracle, clock, call, end, status=None, error=""):
    outcome = call.outcome
    outcome.end, outcome.status, outcome.error = end, status, error
    outcome.ended_s, outcome.ends = clock(), 1
    oracle.finish(call)


def judged(causes, end, status=None, error="", *, model="double", lasts_s=1.0, begins_s=0.5):
    """The findings about a call that began at a time, with a fault from 0 s on."""
    clock = Clock()
    oracle = ChaosOracle(clock, ["double"])
    line = Timeline(clock, oracle)
    call = make_call()
    with line.event("fault", *causes, models=[model]):
        clock.now_s = lasts_s
    clock.now_s = begins_s
    oracle.begin(call)
    call.outcome.submitted_s = call.outcome.began_s = clock()
    clock.now_s = begins_s + 0.1
    finish(oracle, clock, call, end, status, error)
    return [each.sentence for each in oracle.findings]


def test_fault_explains_calls_that_were_open_meanwhile():
    assert judged([Cause.WORKER_KILLED], End.ERROR, 500, "ended") == []
    assert judged([Cause.FRONT_END_KILLED], End.LOST, model="") == []


@pytest.mark.parametrize(
    "causes, end, status, where",
    [
        ([Cause.WORKER_KILLED], End.ERROR, 500, {"model": "other"}),
        ([Cause.WORKER_KILLED], End.ERROR, 404, {}),
        ([Cause.WORKER_KILLED], End.LOST, None, {}),
        ([Cause.WORKER_KILLED], End.ERROR, 500, {"begins_s": 1.5}),
        ([Cause.FRONT_END_KILLED], End.ERROR, 500, {}),
        ([Cause.STALLED], End.ERROR, 503, {}),
        ([], End.ERROR, 503, {}),
    ],
)
def test_fault_does_not_explain_other_ends(causes, end, status, where):
    (sentence,) = judged(causes, end, status, "ended", **where)

    assert "nothing explains" in sentence


def test_connection_that_was_silent_is_lost_by_an_earlier_fault():
    clock = Clock()
    oracle = ChaosOracle(clock, ["double"])
    with Timeline(clock, oracle).event("fault", Cause.FRONT_END_KILLED):
        pass
    clock.now_s = 5.0
    call = make_call()
    oracle.begin(call)
    call.outcome.submitted_s = call.outcome.began_s = clock()

    oracle.silent_since(0.0)
    finish(oracle, clock, call, End.LOST)
    oracle.silent_since(None)

    assert oracle.findings == []
    assert oracle.table()["http infer"]["lost by fault"] == 1


def test_lost_connection_is_silent_since_the_request_that_was_answered_last():
    clock, silences = Clock(), []
    world = types.SimpleNamespace(now=clock, on_silence=silences.append)
    client = Watched(mock.Mock(), world)
    client.connection_made(mock.Mock())
    transport = client._protocol.connection_made.call_args.args[0]
    clock.now_s = 1.0
    transport.write(b"first")
    clock.now_s = 3.0  # the answer waited for the client, and its server ended meanwhile
    client.data_received(b"answer")
    transport.write(b"second")
    client.connection_lost(None)

    assert silences == [1.0, None]


@pytest.mark.parametrize(
    "first_takes_s, second_takes_s, findings", [(0.0, 5.0, 0), (4.5, 0.1, 0), (2.0, 1.0, 1)]
)
def test_sequence_may_end_while_its_steps_take_long(first_takes_s, second_takes_s, findings):
    clock = Clock()
    oracle = ChaosOracle(clock, [])
    steps = [calls.SequenceStep(7, index, index == 0, False) for index in range(2)]
    first, second = (
        Call(step.index, calls.Kind.INFER, calls.Port.GRPC, "accumulate_direct", sequence=step)
        for step in steps
    )
    oracle.begin(first)
    first.outcome.began_s = clock()
    clock.now_s += first_takes_s
    finish(oracle, clock, first, End.CUT)
    oracle.begin(second)
    second.memory.failures = 0
    second.outcome.began_s = clock()
    clock.now_s += second_takes_s
    finish(oracle, clock, second, End.ERROR, 3, "must specify the START flag")

    assert len(oracle.findings) == findings


def test_call_that_never_ends_is_found_unless_it_was_never_sent():
    clock = Clock()
    oracle = ChaosOracle(clock, ["double"])
    waiting, open_one = make_call(), make_call()
    open_one.number = 2
    oracle.begin(waiting)
    oracle.begin(open_one)
    open_one.outcome.submitted_s = 0.0

    oracle.stop()
    oracle.resume()

    assert [each.call for each in oracle.findings] == [open_one]
    assert oracle.open == {}


def test_account_has_wrong_and_double_answers():
    clock = Clock()
    oracle = ChaosOracle(clock, ["double"])
    call = make_call()
    oracle.begin(call)

    finish(oracle, clock, call, End.ANSWERED, 200)  # without any response
    finish(oracle, clock, call, End.ANSWERED, 200)

    row = oracle.table()["http infer"]
    assert (row["sent"], row["answered"], row["wrong"]) == (2, 0, 2)
    assert len(oracle.findings) == 2


def test_time_line_shows_what_was_near():
    clock = Clock()
    line = Timeline(clock)
    for at_s in range(0, 100, 10):
        clock.now_s = float(at_s)
        line.mark(f"event {at_s}")

    assert [each.text for each in line.around(39.0, 51.0)] == ["event 40", "event 50"]


# Reports


def test_report_says_how_to_run_a_finding_again():
    event = Event(1.5, "fault", 1.6, ["noted"])
    account = {"http infer": {"sent": 3, "answered": 2, "lost": 1}}
    finding = Finding("call 3 was lost", (event,))

    text = scene_text(SceneReport(SCENE, account, {"kill worker": 2}, [finding], ["  table"]))

    assert "scripts/chaos --seed 7 --minutes 5 --front-ends 2 --server repository" in text
    assert "1. call 3 was lost" in text
    assert "1.500 to     1.600  fault; noted" in text
    assert "2 x kill worker" in text


def test_report_sums_the_account():
    account = {"grpc infer": {"sent": 3, "answered": 2}, "http infer": {"sent": 40, "lost": 1}}

    lines = scene_text(SceneReport(SCENE, account, {}, [], [])).splitlines()

    (sums,) = [line for line in lines if line.startswith("  all")]
    assert sums.split() == ["all", "43", "2", "1"]
    assert "no findings" in "\n".join(lines)
