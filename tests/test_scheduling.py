# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import types

from tests import scheduling

REPOSITORY = pathlib.Path(__file__).parent.parent


def names(node_ids, durations):
    return [
        [node_ids[index] for index in unit] for unit in scheduling.units_of(node_ids, durations)
    ]


def test_tests_of_a_short_file_stay_together():
    tests = ["a.py::one", "b.py::one", "a.py::two[::]", "a.py::two[x]"]

    assert names(tests, {"a.py::two": scheduling.MIN_CUT_S / 2}) == [
        ["a.py::one", "a.py::two[::]", "a.py::two[x]"],
        ["b.py::one"],
    ]


def test_long_file_is_cut_where_its_time_is_over():
    tests = [f"a.py::one[{number}]" for number in range(4)] + ["a.py::two"]
    durations = {"a.py::one": 2 * scheduling.MIN_CUT_S - 1}

    first, second = tests[:2], tests[2:]  # the second takes longer, by one test
    assert names(tests, durations) == [second, first]


def test_file_is_not_cut_whose_share_of_all_is_small():
    tests = [f"a.py::one[{number}]" for number in range(3)]
    others = {f"b{number}.py::test": scheduling.MIN_CUT_S for number in range(200)}
    durations = {"a.py::one": 2 * scheduling.MIN_CUT_S, **others}

    assert names([*tests, *others], durations)[0] == tests


def test_file_whose_tests_share_a_cluster_is_not_cut():
    tests = ["tests/cluster/test_a.py::one", "tests/cluster/test_a.py::two"]
    durations = dict.fromkeys(tests, 2 * scheduling.MIN_CUT_S)

    assert names(tests, durations) == [tests]


def test_clusters_start_one_after_another():
    files = ("cluster/test_ray.py", "benchmarks/test_ray_loads.py", "docs/test_scaling_walk.py")
    tests = [f"tests/{file}::{name}" for file in files for name in ("one", "two")]
    durations = dict.fromkeys(tests, 2 * scheduling.MIN_CUT_S)

    assert names(tests, durations) == [tests]
    assert all((REPOSITORY / "tests" / file).is_file() for file in files)


def test_longest_unit_starts_first():
    tests = ["short.py::test", "long.py::test", "longer.py::test"]
    durations = {"long.py::test": 5.0, "longer.py::test": 60.0}

    assert names(tests, durations) == [["longer.py::test"], ["long.py::test"], ["short.py::test"]]


def test_measured_files_are_there():
    files = {name.partition("::")[0] for name in scheduling.read_durations()}

    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_xdist_keeps_this_order(pytestconfig):
    assert pytestconfig.option.loadscopereorder is False


class Process:
    """A process of pytest-xdist: which tests it was told to run."""

    shutting_down = False

    def __init__(self):
        self.gateway = types.SimpleNamespace(id="gw")
        self.told = []

    def send_runtest_some(self, indexes):
        self.told.append(indexes)

    def shutdown(self):
        self.shutting_down = True


def test_process_gets_the_next_unit_when_two_tests_are_left(pytestconfig, monkeypatch):
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    tests = [f"a.py::test[{number}]" for number in range(4)] + ["b.py::test", "c.py::test"]
    process = Process()
    scheduler = scheduling.UnitScheduling(pytestconfig)
    scheduler.add_node(process)
    scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    told = [list(process.told)]
    for index in range(3):
        scheduler.mark_test_complete(process, index)
        told.append(list(process.told))

    first = [0, 1, 2, 3]
    assert told == [[first], [first], [first, [4]], [first, [4], [5]]]


def test_process_that_dies_leaves_its_other_tests_to_be_run(pytestconfig, monkeypatch):
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen", "popen"])
    tests = [f"{file}.py::test[{number}]" for file in "abc" for number in range(3)]
    dying, other = processes = [Process(), Process()]
    scheduler = scheduling.UnitScheduling(pytestconfig)
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    scheduler.mark_test_complete(dying, 0)  # and the next file is given to this process
    died_in = scheduler.remove_node(dying)
    for index in (3, 4, 5):
        scheduler.mark_test_complete(other, index)

    assert died_in == "a.py::test[1]"
    assert dying.told == [[0, 1, 2], [6, 7, 8]]
    assert other.told == [[3, 4, 5], [1, 2], [6, 7, 8]]
