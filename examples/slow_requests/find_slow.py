# SPDX-License-Identifier: Apache-2.0
"""Goes from the metrics of a server to the traces of its slow requests.

It needs no package. The server has to trace to a file, and to give each slow request an exemplar:
see docs/metrics.md.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import time
import urllib.request

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_LABEL = r'\w+="(?:[^"\\]|\\.)*"'
_LABELS = rf"\{{((?:{_LABEL},?)*)\}}"
_SLOW = re.compile(
    rf"^nv_inference_slow_requests_total{_LABELS} (\d+) # {_LABELS} (\S+) (\S+)$", re.MULTILINE
)
_PHASES = {
    "queue": ("QUEUE_START", "COMPUTE_START"),
    "input": ("COMPUTE_START", "COMPUTE_INPUT_END"),
    "compute": ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    "output": ("COMPUTE_OUTPUT_START", "COMPUTE_END"),
}


@dataclasses.dataclass(frozen=True)
class SlowRequest:
    """A slow request as the metrics show it."""

    model: str
    request_id: str
    trace_id: str
    seconds: float
    at: float  # when it was answered, since the epoch


class SlowRequests:
    """Gathers the slow requests of the pages that it is given.

    A page has the newest 128 of each model. `missed` counts those that came and went between two
    pages; then ask more often.
    """

    def __init__(self):
        self.found = []
        self.missed = 0
        self._counts = {}  # how many requests have used each slot

    def add(self, page):
        """Add what is new on a page."""
        for labels, count, exemplar, seconds, at in _SLOW.findall(page):
            new = int(count) - self._counts.get(labels, 0)
            self._counts[labels] = int(count)
            if new:
                ids = _read(exemplar)
                model, trace_id = _read(labels)["model"], ids.get("trace_id", "")
                request_id = ids.get("request_id", "")
                self.found.append(
                    SlowRequest(model, request_id, trace_id, float(seconds), float(at))
                )
                self.missed += new - 1


def _read(labels):
    pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
    escapes = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
    return {name: re.sub(r"\\.", lambda it: escapes[it[0]], text) for name, text in pairs}


def scrape(url):
    """Returns the page of metrics in OpenMetrics."""
    request = urllib.request.Request(url, headers={"Accept": OPENMETRICS})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def read_traces(path):
    """Returns the times of each traced request by the id of its trace."""
    traces = {}
    for each in json.loads(pathlib.Path(path).read_bytes()):
        times = traces.setdefault(str(each["id"]), {})
        times.update({stamp["name"]: stamp["ns"] for stamp in each.get("timestamps", ())})
    return traces


def longest_phase(times):
    """Returns the part of a request that took longest."""
    return max(_PHASES, key=lambda name: times[_PHASES[name][1]] - times[_PHASES[name][0]])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="address of the metrics")
    parser.add_argument("traces", help="file of traces")
    parser.add_argument("--watch", type=float, default=0, help="ask again for so many seconds")
    arguments = parser.parse_args()

    slow, end = SlowRequests(), time.monotonic() + arguments.watch
    slow.add(scrape(arguments.url))
    while time.monotonic() < end:
        time.sleep(0.2)
        slow.add(scrape(arguments.url))
    time.sleep(1.5)  # traces are written within a second
    traces = read_traces(arguments.traces)
    for one in sorted(slow.found, key=lambda each: each.request_id):
        print(f"{one.request_id}: {longest_phase(traces[one.trace_id])}")
    print(f"{len(slow.found)} slow requests, {slow.missed} missed")
