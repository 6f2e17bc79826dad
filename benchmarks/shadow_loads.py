# SPDX-License-Identifier: Apache-2.0
"""What a shadow costs the server that has it: requests a second and processor time, in turns.

    python -m benchmarks.shadow_loads --rounds 60

A server answers without a pause. In one turn of each pair, the first or the second by chance, it
sends all its requests to a shadow as well: to none, and to one that is killed, hangs, answers late
or answers wrongly. So the turns that are compared are those of one process with one load, which a
busy machine disturbs alike; two servers would differ by more than a shadow costs. The medians of
the ratios are printed, with the standard error of that of the rates. "none" changes nothing, and
shows how exact the others are. The server and the load have one core, and the shadows with the
process that asks them another, unless `--unpinned` lets all of them run anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np

from pytriton.tools.perf.load.plan import Concurrency, InputSet, LoadPlan, LoadProtocol
from pytriton.tools.perf.load.process_load import ProcessLoad
from tests.free_ports import free_ports

CONFIG = """
backend: "python"
max_batch_size: 64
dynamic_batching {}
input [{name: "x" data_type: TYPE_FP32 dims: [-1]}]
output [{name: "y" data_type: TYPE_FP32 dims: [-1]}]
"""
MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({late_s})
        found = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        outputs = [pb_utils.Tensor("y", each * np.float32({factor})) for each in found]
        return [pb_utils.InferenceResponse(output_tensors=[each]) for each in outputs]
"""
# The server, but signals take the requests away from its shadow and give them back.
SERVER = """
import signal, sys
from pytriton.serving.server.recording import shadow
from pytriton.serving.server.tritonserver import command

class SwitchedShadow(shadow.Shadow):
    def start(self):
        super().start()
        signal.signal(signal.SIGUSR1, lambda *_: self._tap.add(self._queue))
        signal.signal(signal.SIGUSR2, lambda *_: self._tap.remove(self._queue))
        self._tap.remove(self._queue)

shadow.Shadow = SwitchedShadow
sys.exit(command())
"""
SHADOW_MODULE = "pytriton.tools.replay.shadow"
PRIMARY_CORE, SHADOW_CORE = 0, 1
SETTLING_S = 0.02  # after a switch


@dataclasses.dataclass
class Server:
    """A server that answers."""

    pid: int
    http_port: int
    metrics_port: int

    def metric(self, family: str) -> float:
        """Returns the sum of the samples of a family."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(family))

    @property
    def is_ready(self) -> bool:
        """Whether its model answers."""
        url = f"http://127.0.0.1:{self.http_port}/v2/models/times/ready"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclasses.dataclass(frozen=True)
class Turn:
    """What happened until a moment, as all its numbers grow."""

    ended_ns: int
    server_s: float  # processor time of all processes but that of the shadow
    shadow_s: float


@contextlib.contextmanager
def server(
    options: argparse.Namespace, core: int, *, factor: float, late_s: float = 0.0, shadow: int = 0
) -> Iterator[Server]:
    """Runs a server for the length of the block; `shadow` is the port of another."""
    http, grpc, metrics = free_ports(3)
    arguments = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    arguments += ["--log-info=false", f"--frontend-processes={options.front_ends}"]
    if shadow:
        arguments.append(f"--shadow-url=http://127.0.0.1:{shadow}")
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "times"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG)
        (model / "1" / "model.py").write_text(MODEL.format(factor=factor, late_s=late_s))
        command = [sys.executable, "-c", SERVER, f"--model-repository={folder}", *arguments]
        if not options.unpinned:
            command = ["taskset", "-c", str(core), *command]
        with subprocess.Popen(command) as process:
            started = Server(process.pid, http, metrics)
            while not started.is_ready:
                if process.poll() is not None:
                    raise RuntimeError("the server has ended before it was ready")
                time.sleep(0.05)
            yield started
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def hanging() -> Iterator[int]:
    """Yields the port of something that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        kept = []

        def accept() -> None:
            with contextlib.suppress(OSError):  # it was closed
                while True:
                    kept.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def processes_of(pid: int) -> dict[int, bool]:
    """Returns the processes of a server, also of its threads, and which of them ask its shadow."""
    found = {pid: SHADOW_MODULE.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()}
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found |= processes_of(int(child))
    return found


def processor_s(pid: int) -> float:
    """The processor time of a process, as clock_getcpuclockid(3) names its clock."""
    return time.clock_gettime((~pid << 3) | 2)


def pin(pid: int, core: int) -> None:
    """Moves all threads of a process to a core."""
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def now_at(measured: Server) -> Turn:
    """Returns how far a server is."""
    used_s = {False: 0.0, True: 0.0}
    for pid, is_shadow in processes_of(measured.pid).items():
        used_s[is_shadow] += processor_s(pid)
    return Turn(time.monotonic_ns(), used_s[False], used_s[True])


def compare(name: str, measured: Server, options: argparse.Namespace) -> None:
    """Switches the shadow of a server on and off under load, and prints what it costs."""
    values = np.arange(options.elements, dtype=np.float32).reshape(1, -1)
    address, inputs = f"127.0.0.1:{measured.http_port}", [[InputSet({"x": values})]]
    load = ProcessLoad(LoadPlan(address, LoadProtocol.HTTP, "times", inputs, processes=1))
    turns: dict[bool, list[tuple[Turn, Turn]]] = {False: [], True: []}
    try:
        load.start(Concurrency(options.connections))
        load.wait(2.0)
        if not options.unpinned:  # it was started with the core of its server
            for process, is_shadow in processes_of(measured.pid).items():
                pin(process, SHADOW_CORE if is_shadow else PRIMARY_CORE)
        asked = measured.metric("nv_shadow_request_count")
        dropped = measured.metric("nv_shadow_drop_count")
        chance = random.Random(1)  # noqa: S311  # an order is no secret
        pairs = [chance.choice([(False, True), (True, False)]) for _ in range(options.rounds)]
        for is_on in itertools.chain.from_iterable(pairs):
            if name != "none":
                os.kill(measured.pid, signal.SIGUSR1 if is_on else signal.SIGUSR2)
            load.wait(SETTLING_S)
            before = now_at(measured)
            load.wait(options.seconds)
            turns[is_on].append((before, now_at(measured)))
        asked = measured.metric("nv_shadow_request_count") - asked
        dropped = measured.metric("nv_shadow_drop_count") - dropped
    finally:
        records = load.stop()
    if not records.ok.all():
        raise RuntimeError(f"expected no errors, got {records.errors}")
    report(name, turns, np.sort(records.last_ns), asked / max(1.0, asked + dropped))


def report(
    name: str, turns: dict[bool, list[tuple[Turn, Turn]]], ends_ns: np.ndarray, share: float
) -> None:
    """Prints the medians of the ratios of each turn with a shadow and the one beside it."""

    def figures(begin: Turn, end: Turn) -> tuple[float, float, float]:
        times = (begin.ended_ns, end.ended_ns)
        count = max(1, int(np.diff(np.searchsorted(ends_ns, times))[0]))
        server_s, shadow_s = end.server_s - begin.server_s, end.shadow_s - begin.shadow_s
        rate = count / (end.ended_ns - begin.ended_ns) * 1e9
        return rate, 1e6 * server_s / count, 1e6 * (server_s + shadow_s) / count

    off = [figures(*turn) for turn in turns[False]]
    on = [figures(*turn) for turn in turns[True]]
    pairs = list(zip(off, on, strict=True))
    ratios = [[after[place] / before[place] for before, after in pairs] for place in range(3)]
    rate, cpu, both = (statistics.median(each) for each in ratios)
    # That of a median, from the median distance, which single disturbed turns do not change.
    error = 1.86 * statistics.median(abs(each - rate) for each in ratios[0]) / len(pairs) ** 0.5
    off_rate, off_us, _ = (statistics.median(each) for each in zip(*off, strict=True))
    print(
        f"{name:>8} {off_rate:8,.0f} {off_us:8.1f} {rate:6.3f} {error:6.3f} {cpu:6.3f} {both:8.3f}"
        f" {share:7.2%} {os.getloadavg()[0]:6.1f}",
        flush=True,
    )


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each turn")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--elements", type=int, default=1, help="numbers of each request")
    parser.add_argument("--front-ends", type=int, default=0)
    parser.add_argument("--unpinned", action="store_true", help="let everything run anywhere")
    parser.add_argument("--only", nargs="*", help="rows: none killed hangs late wrong")
    options = parser.parse_args()
    if not options.unpinned:
        os.sched_setaffinity(0, {PRIMARY_CORE})  # also of the processes that make load
    with contextlib.ExitStack() as stack:
        late, wrong = (
            stack.enter_context(server(options, SHADOW_CORE, factor=factor, late_s=late_s))
            for factor, late_s in ((2, 1.0), (3, 0.0))
        )
        killed = free_ports(1)[0]
        ports = {
            "none": killed,
            "killed": killed,
            "hangs": stack.enter_context(hanging()),
            "late": late.http_port,
            "wrong": wrong.http_port,
        }
        print("  shadow    off/s   off us   rate    +/-    cpu  +shadow   asked   load")
        for name, port in ports.items():
            if options.only and name not in options.only:
                continue
            with server(options, PRIMARY_CORE, factor=2, shadow=port) as measured:
                compare(name, measured, options)


if __name__ == "__main__":
    main()
