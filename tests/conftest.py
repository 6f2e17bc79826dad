# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import gc
import os
import sys

import hypothesis
import pytest

from pytriton.base.lazy_module import LazyModule
from tests import parts, peers, scheduling
from tests.compiling import compile_share
from tests.pauses import sitecustomize as pauses

testing = LazyModule("pytriton.testing")

# No test has a time limit: a machine may be busy with other things.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


processor_time = scheduling.ProcessorTime()


def pytest_addoption(parser):
    parser.addoption("--parts", metavar="PART,…", help="run the tests of these parts only")
    parser.addoption(
        "--write-durations", action="store_true", help="write what tests/scheduling.py reads"
    )
    parser.addoption(
        "--pauses", metavar="SEED", help="pause threads at random, which makes rare races likely"
    )


def pytest_configure(config):
    # Units start in the order of `units_of`, not those of many tests first.
    config.option.loadscopereorder = False
    if config.option.write_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(scheduling.DurationWriter())
    config.pluginmanager.register(SmallHeap())
    if config.option.pauses:
        config.pluginmanager.register(PausedTests(config.option.pauses))


class SmallHeap:
    """Collections of garbage leave out what the tests of earlier files left for good.

    These are reports, caches and modules. With ten thousand tests, each `gc.collect()` of a test
    would take a tenth of a second. What a file leaves as garbage is collected first.
    """

    MIN_TESTS = 50  # after fewer, collecting takes longer than it saves

    def __init__(self):
        self._tests_count = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        result = yield
        self._tests_count += 1
        is_last_of_file = nextitem is None or nextitem.path != item.path
        if is_last_of_file and self._tests_count >= self.MIN_TESTS:
            self._tests_count = 0
            gc.collect()
            gc.freeze()
        return result


class PausedTests:
    """Gives each test its own pauses, however many the tests before it took."""

    def __init__(self, seed):
        self._pauses = pauses.begin(seed)

    def pytest_runtest_setup(self):
        self._pauses.left = pauses.MAX_PAUSES


@pytest.hookimpl(optionalhook=True)  # failed tests run again without pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    return scheduling.UnitScheduling(config, log)


def chosen_parts(config) -> set[str]:
    given = config.option.parts
    return set(given.split(",")) if given else set(parts.PARTS)


def pytest_ignore_collect(collection_path, config):
    """Files of other parts are not imported, as their packages may be missing."""
    if not collection_path.name.startswith("test_"):
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    chosen = chosen_parts(config)
    return None if parts.part_of(file) in chosen or parts.marked_parts(file) & chosen else True


def parts_of(item) -> set[str]:
    marked = {mark.args[0] for mark in item.iter_markers("part")}
    return marked or {parts.part_of(item.nodeid.partition("::")[0])}


@pytest.fixture(scope="module")
def front_end_mode(request):
    """How many processes of their own the front ends of servers have; of the tests that say so."""
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(request, "param"):
            patch.setenv("PYTRITON_FRONTEND_PROCESSES", request.param)
        yield


def pytest_generate_tests(metafunc):
    is_marked = any(metafunc.definition.iter_markers("both_front_end_modes"))
    # The part `servers` runs tests again with this set.
    is_given = "PYTRITON_FRONTEND_PROCESSES" in os.environ
    if is_marked and not is_given and "front_end_mode" in metafunc.fixturenames:
        modes = {"one process": "0", "front ends": "2"}
        metafunc.parametrize(
            "front_end_mode", modes.values(), indirect=True, ids=list(modes), scope="module"
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    chosen = chosen_parts(config)
    items[:] = [item for item in items if parts_of(item) <= chosen]
    if reason := peers.missing():
        for item in items:
            if "peers" in parts_of(item):
                item.add_marker(pytest.mark.skip(reason=reason))
    units = scheduling.units_of([item.nodeid for item in items], scheduling.read_durations())
    items[:] = [items[index] for unit in units for index in unit]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Hides GPUs, as what is compared was recorded on machines without one; forks servers."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if item.get_closest_marker("gpu") is None:
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
        if item.get_closest_marker("real_start") or item.config.option.pauses:
            patch.setenv("PYTRITON_TEST_SERVER_START", "spawn")
        elif "pytriton.triton" in sys.modules:
            stack.enter_context(testing.forked_servers())
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collections of garbage leave out what stays: the modules and items of all tests.

    Looking through them while they are made takes two seconds, and with them each `gc.collect()`
    of a test takes a third of a second.
    """
    gc.disable()
    try:
        compile_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        processor_time.read()  # which is none of the first test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Reports go from one process to another as UTF-8, which has no form for half a surrogate."""
    report = yield
    if item.config.option.write_durations:
        report.processor_s = processor_time.read()
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
