# SPDX-License-Identifier: Apache-2.0
"""Which tests run in the same process, and the order in which they start.

Tests of a file run in one process, one after another, as they share servers. A file that takes
long is cut: otherwise, it decides on a machine with many cores when all end. What takes longest
starts first. `scripts/test --all --write-durations`, on a quiet machine, measures again how much
processor time functions take, with that of the processes that they start.
"""

from __future__ import annotations

import json
import pathlib
import re
import resource
from collections import Counter, defaultdict

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

DURATIONS = pathlib.Path(__file__).with_name("durations.json")
MAX_SHARE = 1 / 64  # of the time of all tests, for a unit
MIN_CUT_S = 10.0  # shorter units would start more servers than they save time
MIN_WRITTEN_S = 1.0  # shorter ones are not worth a line
UNKNOWN_S = 0.01  # of a test that is not in the list
# Their tests share something that takes too long to be made twice: a cluster of Ray, the answers of
# a server to all cases, the documentation site.
WHOLE = re.compile(
    r"tests/cluster/|_differential|tests/docs/test_(site|scaling_walk)\.py"
    r"|tests/c_library/test_programs\.py|tests/e2e/test_memory\.py"
)
# These start clusters of Ray, one after another: each has a dozen processes, and two of them at a
# time take minutes to start on two cores.
CLUSTERS = re.compile(
    r"tests/(cluster/test_ray\w*|benchmarks/test_ray_loads|docs/test_scaling_walk)\.py"
)


def function_of(node_id: str) -> str:
    """The name of a test without its parameters."""
    file, _, name = node_id.partition("::")
    return f"{file}::{name.partition('[')[0]}"


def is_whole(file: str) -> bool:
    return file == "clusters" or WHOLE.search(file) is not None


def units_of(node_ids: list[str], durations: dict[str, float]) -> list[list[int]]:
    """Tests that stay together, as indexes; what takes longest comes first.

    Args:
        node_ids: All tests. Those of a file are cut into parts, but keep their order.
        durations: The processor time of functions, for all of their parameters together.
    """
    counts = Counter(map(function_of, node_ids))
    files: dict[str, list[int]] = defaultdict(list)
    for index, node_id in enumerate(node_ids):
        file = node_id.partition("::")[0]
        files["clusters" if CLUSTERS.search(file) else file].append(index)

    def seconds(index: int) -> float:
        function = function_of(node_ids[index])
        return durations.get(function, 0.0) / counts[function] + UNKNOWN_S

    longest_s = max(MIN_CUT_S, sum(map(seconds, range(len(node_ids)))) * MAX_SHARE)
    units: list[tuple[float, list[int]]] = []
    for file, indexes in files.items():
        unit, unit_s = [], 0.0
        for index in indexes:
            if unit and unit_s + seconds(index) > longest_s and not is_whole(file):
                units.append((unit_s, unit))
                unit, unit_s = [], 0.0
            unit.append(index)
            unit_s += seconds(index)
        units.append((unit_s, unit))
    return [unit for _, unit in sorted(units, key=lambda each: -each[0])]


def read_durations() -> dict[str, float]:
    return json.loads(DURATIONS.read_text())


class UnitScheduling(LoadScopeScheduling):
    """Gives processes one unit after another."""

    def schedule(self) -> None:
        if self.collection is None:
            node_ids = next(iter(self.registered_collections.values()))
            self._indexes = {node_id: index for index, node_id in enumerate(node_ids)}
            self._units = {
                node_ids[index]: node_ids[unit[0]]
                for unit in units_of(node_ids, read_durations())
                for index in unit
            }
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]

    # These do what those of pytest-xdist do, which take longer with each test that was run: they
    # search the list of all tests, and count what is done again and again.

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit, tests = self.workqueue.popitem(last=False)
        self.assigned_work[node][unit] = tests
        node.send_runtest_some([self._indexes[test] for test in tests])

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        test = self.registered_collections[node][item_index]
        units = self.assigned_work[node]
        unit = self._units[test]
        del units[unit][test]
        if not units[unit]:
            del units[unit]
        self._reschedule(node)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))


class ProcessorTime:
    """How much processor time passed between two readings, here and in children that ended."""

    def __init__(self) -> None:
        self._read_s = self._now_s()

    def _now_s(self) -> float:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def read(self) -> float:
        """The seconds since the last reading."""
        last_s, self._read_s = self._read_s, self._now_s()
        return self._read_s - last_s


class DurationWriter:
    """A plugin of pytest: writes what the tests that ran have taken, and keeps the others."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report):
        self._seconds[function_of(report.nodeid)] += report.processor_s

    def pytest_sessionfinish(self):
        found = read_durations() | {name: round(time, 1) for name, time in self._seconds.items()}
        files = {name: (DURATIONS.parent.parent / name.partition("::")[0]) for name in found}
        longer = {
            name: time
            for name, time in sorted(found.items())
            if time >= MIN_WRITTEN_S and files[name].is_file()
        }
        DURATIONS.write_text(json.dumps(longer, indent=1) + "\n")
