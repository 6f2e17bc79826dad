# SPDX-License-Identifier: Apache-2.0
"""Compares what two checkouts of this project, or two settings, need for the same requests.

    python -m benchmarks.processor_overhead ../before . --rounds 8
    python -m benchmarks.processor_overhead . . --before-metrics costs=false --rounds 8
    python -m benchmarks.processor_overhead ../before . --instructions

Each round starts a server of both, which run at the same time, and sends them the same short loads
in turns. The processor time of all processes of a server counts, also of the one that binds the
model; wall time plays no part. What is printed is the median of the ratios of all turns. The same
code differs by some percent from process to process, so rounds matter more than turns.

With --instructions, the instructions of the Python interpreter are counted instead. They are almost
the same in each run, and the functions with the largest differences are printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.grpc_loads import framed, infer_request, parse_report
from tests.free_ports import free_ports

SERVER = """
import json, sys
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
http, grpc, metrics = map(int, sys.argv[1:4])
config = TritonConfig(
    http_port=http, grpc_port=grpc, metrics_port=metrics, model_repository=sys.argv[4],
    **json.loads(sys.argv[5]),
)
row = Tensor(name="x", dtype=np.float32, shape=(1,))
with Triton(config=config) as triton:
    size = ModelConfig(max_batch_size=64)
    triton.bind("Same", batch(lambda x: {"x": x}), [row], [row], config=size)
    triton.bind("Each", lambda requests: requests, [row], [row], config=size)
    triton.run()
    print("ready", flush=True)
    sys.stdin.read()
"""
MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy())])
            for each in requests
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 64
dynamic_batching {}
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# Runs first in each process, as Python imports a module of this name if it finds one.
COUNTING = "import runpy\nrunpy.run_path({path!r}, run_name='counter')['start']()\n"
SHOWN_FUNCTIONS = 25


@dataclass(frozen=True)
class Load:
    """Requests that h2load sends on some connections, one at a time on each."""

    title: str
    model: str
    connections: int
    is_grpc: bool = False


LOADS = {
    "http64": Load("HTTP binary c=64", "Same", 64),
    "http1": Load("HTTP binary c=1", "Same", 1),
    "grpc64": Load("gRPC c=64", "Same", 64, is_grpc=True),
    "grpc1": Load("gRPC c=1", "Same", 1, is_grpc=True),
    "each64": Load("an answer for each request, HTTP binary c=64", "Each", 64),
    "model64": Load("model.py, HTTP binary c=64", "Echo", 64),
}


@dataclass(frozen=True)
class Running:
    """A server of this comparison."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    folder: pathlib.Path

    def processor_s(self) -> float:
        return processor_s(self.process.pid)

    def send(self, load: Load, count: int) -> None:
        """Send requests, all of which have to succeed."""
        array = np.ones((1, 1), np.float32)
        if load.is_grpc:
            body = framed(infer_request(load.model, {"x": array}))
            headers = ["te: trailers", "content-type: application/grpc"]
            path = f"{self.grpc_port}/inference.GRPCInferenceService/ModelInfer"
        else:
            document = {
                "inputs": [
                    {
                        "name": "x",
                        "shape": [1, 1],
                        "datatype": "FP32",
                        "parameters": {"binary_data_size": 4},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
            head = json.dumps(document).encode()
            body = head + array.tobytes()
            headers = [f"Inference-Header-Content-Length: {len(head)}"]
            path = f"{self.http_port}/v2/models/{load.model}/infer"
        file = self.folder / "body"
        file.write_bytes(body)
        command = ["h2load", "-t1", "-m1", f"-c{load.connections}", f"-n{count}", f"-d{file}"]
        command += [] if load.is_grpc else ["--h1"]
        command += [word for header in headers for word in ("-H", header)]
        command.append(f"http://127.0.0.1:{path}")
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        report = parse_report(output)
        if report.succeeded != count or report.data_bytes < 4 * count:
            raise RuntimeError(f"expected that {count} requests succeed, got:\n{output}")


def processor_s(pid: int) -> float:
    """The processor time of a process and of its children, as clock_getcpuclockid(3) names it."""
    children = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(child) for each in children for child in each.read_text().split()]
    return time.clock_gettime((~pid << 3) | 2) + sum(processor_s(child) for child in pids)


@contextlib.contextmanager
def running(
    checkout: pathlib.Path, settings: dict[str, object], *, counts: bool = False
) -> Iterator[Running]:
    """Start a server of a checkout."""
    ports = free_ports(3)
    paths = [str(checkout.resolve() / "src")]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        version = folder / "models/Echo/1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        if counts:
            counter = pathlib.Path(__file__).with_name("instruction_counter.py")
            (folder / "sitecustomize.py").write_text(COUNTING.format(path=str(counter)))
            (folder / "counts").mkdir()
            environment["PYTRITON_INSTRUCTION_COUNTS"] = str(folder / "counts")
            paths.insert(0, name)
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        arguments = [*map(str, ports), str(folder / "models"), json.dumps(settings)]
        with subprocess.Popen(
            [sys.executable, "-c", SERVER, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            while server.stdout.readline().strip() != b"ready":
                assert server.poll() is None, "the server has ended"
            yield Running(server, ports[0], ports[1], folder)
            server.stdin.close()


def compare_times(options: argparse.Namespace, loads: list[Load]) -> None:
    """Print the ratios of processor times."""
    found: dict[Load, list[tuple[float, float]]] = {load: [] for load in loads}
    for number in range(options.rounds):
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(running(checkout, settings))
                for checkout, settings in contestants(options)
            ]
            for load in loads:
                for server in servers:
                    server.send(load, options.count)  # warm it up
                for turn in range(options.turns):
                    order = servers if (number + turn) % 2 else servers[::-1]
                    used = {}
                    for server in order:
                        before = server.processor_s()
                        server.send(load, options.count)
                        used[server.http_port] = server.processor_s() - before
                    first, second = (used[server.http_port] for server in servers)
                    found[load].append((first, second))
    for load, pairs in found.items():
        before, after = (
            statistics.median(values) / options.count * 1e6 for values in zip(*pairs, strict=True)
        )
        ratios = [second / first for first, second in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{load.title}: {before:.2f} : {after:.2f} us, {(middle - 1) * 100:+.1f} % "
            f"(quartiles {(low - 1) * 100:+.1f} and {(high - 1) * 100:+.1f}, {len(ratios)} turns)",
            flush=True,
        )


def compare_instructions(options: argparse.Namespace, loads: list[Load]) -> None:
    """Print the counts of instructions, and the functions that differ most."""
    for load in loads:
        found = [
            count_instructions(checkout, settings, load, options.count)
            for checkout, settings in contestants(options)
        ]
        before, after = (sum(counts.values()) for counts in found)
        difference = (after / before - 1) * 100
        print(f"{load.title}: {before:,.0f} : {after:,.0f} instructions, {difference:+.1f} %")
        names = sorted(set(found[0]) | set(found[1]), key=lambda each: -abs(_gain(found, each)))
        for name in names[: options.functions]:
            print(
                f"  {found[0][name]:8.1f} {found[1][name]:8.1f} {_gain(found, name):+8.1f}  {name}"
            )


def _gain(found: list[collections.Counter[str]], name: str) -> float:
    return found[1][name] - found[0][name]


def count_instructions(
    checkout: pathlib.Path, settings: dict[str, object], load: Load, count: int
) -> collections.Counter[str]:
    """Returns the instructions for a request, by function."""
    with running(checkout, settings, counts=True) as server:
        server.send(load, count)
        folder = server.folder / "counts"
        (folder / "begin").touch()
        time.sleep(0.5)  # all processes look for it
        server.send(load, count)
        (folder / "end").touch()
        time.sleep(1)
        found: collections.Counter[str] = collections.Counter()
        for file in folder.glob("*.json"):
            for place, each in json.loads(file.read_text()).items():
                # Without the folder, functions of two checkouts have the same name.
                found[re.sub(r"^.*/(src|lib)/", "", place)] += each / count
    return found


def contestants(options: argparse.Namespace) -> list[tuple[pathlib.Path, dict[str, object]]]:
    """Returns the checkouts and their settings."""
    return [
        (
            checkout,
            {"frontend_processes": options.front_ends}
            | ({"metrics_config": metrics} if metrics else {}),
        )
        for checkout, metrics in (
            (options.before, options.before_metrics),
            (options.after, options.after_metrics),
        )
    ]


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5, help="of fresh servers")
    parser.add_argument("--turns", type=int, default=12, help="for each load in a round")
    parser.add_argument("--count", type=int, default=2000, help="requests in each turn")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--front-ends", type=int, default=0)
    parser.add_argument("--before-metrics", nargs="+", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--after-metrics", nargs="+", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--instructions", action="store_true", help="count these, not time")
    parser.add_argument("--functions", type=int, default=SHOWN_FUNCTIONS, help="that are printed")
    options = parser.parse_args()
    compare = compare_instructions if options.instructions else compare_times
    compare(options, [LOADS[name] for name in options.loads])


if __name__ == "__main__":
    main()
