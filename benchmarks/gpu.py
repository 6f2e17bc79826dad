# SPDX-License-Identifier: Apache-2.0
"""What GPUs cost and gain, as figures with their goals: all of them in about 200 seconds.

    python -m benchmarks.gpu --json gpu.json

It prints the figures of docs/gpu.md, row by row: CUDA shared memory of clients, identity of large
tensors, tensors between models, a small model, and what is left after kills. `--only` chooses rows.
It needs torch. With `--stand-in`, all that this module does can be tried without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import gpu_kills
from benchmarks.gpu_setup import (
    CONFIG,
    GRPC,
    HTTP,
    MIB,
    ON_DEVICE,
    STAND_IN,
    Model,
    Nvml,
    Server,
    ensemble,
    model,
    regions,
    run_with_stand_in,
)
from pytriton.tools.perf.load.plan import (
    Concurrency,
    InputSet,
    LoadPlan,
    LoadProtocol,
    TensorMemory,
)
from pytriton.tools.perf.load.process_load import ProcessLoad

COPIED = "nv_inference_gpu_copy_bytes"
TENSORS = "nv_inference_gpu_tensors_total"
LOST_MIB = 64.0  # what NVML may tell more after kills than before: contexts differ by some MiB
TOGETHER = "dynamic_batching { }"
_TURNS = 3  # of large tensors in a round
BATCH_MODEL = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.weights = torch.rand(1024, 1024, device="{device}")

    def execute(self, requests):
        parts = [each.inputs()[0].as_numpy() for each in requests]
        x = torch.as_tensor(np.concatenate(parts)).to("{device}", non_blocking=True)
        y = (x @ self.weights).cpu().numpy()
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", part)]) for part in np.split(y, ends)
        ]
"""
TORCH = {"top": "import torch"}
ON_GPU = {"top": "import torch", "more": ON_DEVICE}
MODELS = {
    "host": model('return pb_utils.Tensor("Y", x.as_numpy())'),
    # Its output is in another block than its input, as that of a GPU is, but was not there.
    "host_copy": model('return pb_utils.Tensor("Y", x.as_numpy().copy())'),
    "gpu": model(
        'return pb_utils.Tensor.from_dlpack("Y", torch.as_tensor(x.as_numpy()).cuda())', **TORCH
    ),
    "region": model('return pb_utils.Tensor.from_dlpack("Y", x)', more=ON_DEVICE),
    # As most models have it: the input as a tensor of torch, and an output of torch.
    "region_torch": model(
        'return pb_utils.Tensor.from_dlpack("Y", torch.from_dlpack(x))', **ON_GPU
    ),
    "region_host": model('return pb_utils.Tensor("Y", x.as_numpy())'),
    "small_gpu": (BATCH_MODEL.format(device="cuda"), CONFIG.format(batch=64, more=TOGETHER)),
    "small_host": (BATCH_MODEL.format(device="cpu"), CONFIG.format(batch=64, more=TOGETHER)),
}
# Tensors of `count` numbers on the GPU, made there and added up there, so that only single numbers
# have to pass the bus.
_MAKE = 'y = torch.full(({count},), x.as_numpy()[0].item(), device="cuda")\n'
_SUM = 'return pb_utils.Tensor("Y", np.array([torch.from_dlpack(x).sum().item()], np.float32))'
_DOUBLE = 'return pb_utils.Tensor.from_dlpack("Y", torch.from_dlpack(x) * 2)'
_CALL = """
def called(name, tensor):
    call = pb_utils.InferenceRequest(
        inputs=[tensor], requested_output_names=["Y"], model_name=name)
    response = call.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response.output_tensors()[0]
"""
_CALLER = """
y = called("chain_double", pb_utils.Tensor.from_dlpack("X", y))
return called("chain_sum", pb_utils.Tensor.from_dlpack("X", y))
"""


def chain_models(count: int) -> dict[str, Model]:
    """Returns an ensemble of three steps, and a model that calls two, with tensors of a size."""
    make = _MAKE.format(count=count)
    send = 'return pb_utils.Tensor.from_dlpack("Y", y)'
    return {
        "chain_make": model(make + send, **TORCH),
        "chain_double": model(_DOUBLE, **ON_GPU),
        "chain_sum": model(_SUM, **ON_GPU),
        "chain": ensemble("chain_make", "chain_double", "chain_sum"),
        "calls": model(make + _CALLER, top=f"import torch\n{_CALL}"),
    }


def generated(server: Server, name: str, count: int, concurrency: int, **options: Any) -> float:
    """Returns requests a second of the load generator, with inputs of so many numbers."""
    seconds = options.pop("seconds")
    protocol = options.pop("protocol", HTTP)
    shape = options.pop("shape", (count,))
    plan = LoadPlan(
        url=f"127.0.0.1:{server.http_port if protocol == HTTP else server.grpc_port}",
        protocol=LoadProtocol(protocol),
        model=name,
        inputs=[[InputSet({"X": np.ones(shape, np.float32)})]],
        outputs=["Y"],
        **options,
    )
    load = ProcessLoad(plan)
    load.start(Concurrency(concurrency))
    try:
        load.wait(min(1.0, seconds / 2))
        load.take()
        load.wait(seconds)
        records = load.take()
        while not len(records):  # a machine that is busy with other things
            load.wait(seconds)
            records = load.take()
    finally:
        load.stop(at_once=True)
    if records.errors:
        raise SystemExit(f"{name}: {records.errors}")
    return len(records) / ((records.taken_ns - records.since_ns) / 1e9)


def called(call: Callable[[], Any], seconds: float) -> float:
    """Returns calls a second."""
    for _ in range(20):
        call()
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        call()
        count += 1
    return count / spent


def tritonclient_rate(
    protocol: str, port: int, size: int, names: tuple[str, str], seconds: float, model: str
) -> float:
    """Returns requests a second of one client of `tritonclient` with CUDA shared memory."""
    if protocol == HTTP:
        import tritonclient.http as library  # noqa: PLC0415
    else:
        import tritonclient.grpc as library  # noqa: PLC0415
    x = library.InferInput("X", (size // 4,), "FP32")
    x.set_shared_memory(names[0], size)
    y = library.InferRequestedOutput("Y")
    y.set_shared_memory(names[1], size)
    client = library.InferenceServerClient(f"127.0.0.1:{port}")
    try:
        return called(lambda: client.infer(model, [x], outputs=[y]), seconds)
    finally:
        client.close()


@contextlib.contextmanager
def canned_server(size: int, name: str) -> Iterator[int]:
    """A process that gives every request over HTTP the same answer; yields its port."""
    parameters = {"shared_memory_region": name, "shared_memory_byte_size": size}
    output = {"name": "Y", "datatype": "FP32", "shape": [size // 4], "parameters": parameters}
    answer = {"model_name": "region", "model_version": "1", "outputs": [output]}
    command = [sys.executable, "-m", "benchmarks.gpu", "--canned", json.dumps(answer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def serve_canned(body: bytes) -> None:
    """Answer one client after the other, for ever."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    answer = head % len(body) + body
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        while received := connection.recv(1 << 16):
            data += received
            head_end = data.find(b"\r\n\r\n")
            if head_end < 0:
                continue
            lines = data[:head_end].lower().split(b"\r\n")
            length = next(int(each[15:]) for each in lines if each.startswith(b"content-length:"))
            if len(data) >= head_end + 4 + length:
                data = b""
                connection.sendall(answer)


class Figures:
    """What was measured, printed line by line, and which goals were reached."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._goals: dict[str, bool] = {}

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Note and print a figure, beside its goal if it has one."""
        self.values[name] = round(value, 3)
        goal = ""
        if at_least is not None:
            self._goals[name] = value >= at_least
            goal = f"(goal: at least {at_least:,g})"
        elif at_most is not None:
            self._goals[name] = value <= at_most
            goal = f"(goal: at most {at_most:,g})"
        print(f"{name:<64} {value:>12,.2f} {unit} {goal}".rstrip(), flush=True)

    def print_goals(self) -> None:
        """Print which goals were reached, of those that were measured."""
        for name, is_reached in self._goals.items():
            print(f"{'reached' if is_reached else 'MISSED ':<8} {name}", flush=True)


def measure_copies(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """Identity of large tensors over HTTP: on the host, and through the GPU."""
    count = options.mib * MIB // 4
    before = server.counts(COPIED)
    # Single rates differ by a fifth. In short turns, what else happens falls on all of them.
    turns = [
        {
            name: generated(server, name, count, 4, seconds=options.seconds / 2)
            for name in ("host", "gpu", "host_copy")
        }
        for _ in range(_TURNS * options.rounds)
    ]
    for name in turns[0]:
        label = f"identity of {options.mib} MiB over HTTP, 4 clients, {name}"
        rate = statistics.median(each[name] for each in turns)
        figures.add(label, rate * options.mib, "MiB/s in and out each")
    ratio = statistics.median(each["gpu"] / each["host"] for each in turns)
    label = "identity through the GPU as a part of that on the host"
    figures.add(label, ratio, "", at_least=0.95)
    ratio = statistics.median(each["host_copy"] / each["host"] for each in turns)
    figures.add("a copy on the host as a part of identity there", ratio, "")
    # So that one can see that they are counted: between models there are to be none.
    moved = sum(_since(server.counts(COPIED), before).values())
    figures.add("bytes over PCIe by our copies meanwhile", moved / MIB, "MiB")


def measure_regions(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """CUDA shared memory of one client, over both protocols."""
    for mib, goal in ((options.mib, 3000.0), (16 * options.mib, 1500.0)):
        size = mib * MIB
        with regions(server, size) as (first, second, source, target):
            source.write(np.full(size // 4, 7, np.float32))
            for protocol, port in ((HTTP, server.http_port), (GRPC, server.grpc_port)):
                with _without_package(f"tritonclient over {protocol}"):
                    call = (protocol, port, size, (first, second), options.seconds, "region")
                    rate = max(tritonclient_rate(*call) for _ in range(options.rounds))
                    label = f"CUDA shared memory, {mib} MiB, {protocol}, 1 tritonclient"
                    goals = {"at_least": goal} if protocol == HTTP else {}
                    figures.add(label, rate, "requests/s", **goals)
                    assert target.read(8).tolist() == [7.0] * 8, "the output is another one"
        for protocol in (HTTP, GRPC):
            memory = {"shared_memory": TensorMemory.CUDA, "output_region_bytes": size}
            load = {"protocol": protocol, "seconds": options.seconds, **memory}
            rates = (
                generated(server, "region", size // 4, 1, **load) for _ in range(options.rounds)
            )
            label = f"CUDA shared memory, {mib} MiB, {protocol}, 1 connection of the generator"
            figures.add(label, max(rates), "requests/s", at_least=goal)
    size = options.mib * MIB
    with canned_server(size, "out") as port, _without_package("tritonclient"):
        rate = tritonclient_rate(HTTP, port, size, ("in", "out"), options.seconds, "region")
        figures.add("tritonclient alone, http, against canned answers", rate, "requests/s")
    with regions(server, size) as (first, second, _, _), _without_package("tritonclient"):
        for name, words in (("region_torch", "through torch"), ("region_host", "on the host")):
            arguments = (size, (first, second), options.seconds, name)
            rate = tritonclient_rate(HTTP, server.http_port, *arguments)
            label = f"CUDA shared memory, {options.mib} MiB, http, model {words}"
            figures.add(label, rate, "requests/s")


@contextlib.contextmanager
def _without_package(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        print(f"{name} is left out: {error}", flush=True)


def measure_small(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """A small model with many clients: on the GPU, and the same on the host."""
    rates: dict[str, float] = {}
    for _ in range(options.rounds):
        for name in ("small_host", "small_gpu"):
            load = {"shape": (1, 1024), "seconds": options.seconds}
            rate = generated(server, name, 1024, 64, **load)
            rates[name] = max(rates.get(name, 0.0), rate)
    for name, rate in rates.items():
        figures.add(f"1x1024 by 1024x1024, 64 connections, {name}", rate, "requests/s")
    label = "small model on the GPU as a part of that on the host"
    figures.add(label, rates["small_gpu"] / rates["small_host"], "", at_least=0.9)


def measure_chain(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """Three models with tensors on the GPU between them: what passes the bus, and how fast."""
    nvml = Nvml()
    count = options.mib * MIB // 4
    for name, words in (("chain", "ensemble of three steps"), ("calls", "model that calls two")):
        answer = _answer(server, name, 3.0)
        if answer != 6.0 * count:
            raise SystemExit(f"{name}: expected {6.0 * count}, got {answer}")
        before = {family: server.counts(family) for family in (COPIED, TENSORS)}
        with sampled(nvml.bus_kib) as bus:
            rate = generated(server, name, 1, 4, seconds=options.seconds)
        since = {family: _since(server.counts(family), before[family]) for family in before}
        figures.add(f"{words}, {options.mib} MiB on the GPU", rate, "requests/s")
        moved = sum(since[COPIED].values())  # of all models: nobody else sends requests
        figures.add(f"{words}, bytes over PCIe by our copies", moved, "bytes", at_most=0)
        ways = [
            sum(value for labels, value in since[TENSORS].items() if f'way="{way}"' in labels)
            for way in ("shared", "copied")
        ]
        figures.add(f"{words}, tensors that were shared", ways[0], "")
        figures.add(f"{words}, tensors that were copied", ways[1], "", at_most=0)
        if bus:
            through = rate * 2 * options.mib
            for index, direction in enumerate(("to", "from")):
                values = [each[index] for each in bus]
                label = f"{words}, over PCIe {direction} the GPU by NVML"
                note = f"MiB/s on average, with {through:,.0f} MiB/s from step to step"
                figures.add(label, sum(values) / len(values) / 1024, note)
        else:
            print(f"{words}: NVML does not tell what passes the bus", flush=True)


def _answer(server: Server, name: str, value: float) -> float:
    x = {"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{name}/infer"
    with urllib.request.urlopen(url, json.dumps({"inputs": [x]}).encode(), timeout=120) as answer:
        return float(json.load(answer)["outputs"][0]["data"][0])


def _since(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {labels: value - before.get(labels, 0) for labels, value in now.items()}


@contextlib.contextmanager
def sampled(function: Callable[[], Any]) -> Iterator[list[Any]]:
    """Call a function again and again in a thread; yields what it returned, if not None."""
    values: list[Any] = []
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.02) and (value := function()) is not None:
            values.append(value)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        is_over.set()
        thread.join()


def measure_kills(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """Kill workers, clients and regions; then the GPU has as much memory as before."""
    nvml = Nvml()
    lanes = [gpu_kills.Lane(server, number) for number in range(options.lanes)]
    try:
        gpu_kills.warm_up(lanes)
        before = gpu_kills.settled(nvml.used_bytes)
        print("every process was killed once, and what is made once is there", flush=True)
        seconds = gpu_kills.kill(lanes, options.kills, options.kill_seconds)
        after = gpu_kills.settled(nvml.used_bytes)
    finally:
        for lane in lanes:
            lane.close()
    killed = sum((lane.killed for lane in lanes), Counter())
    answers = sum((lane.answers for lane in lanes), Counter())
    for label, counts in (("kills", killed), ("answers meanwhile, one for each request", answers)):
        figures.add(label, counts.total(), f"{dict(counts)}")
    figures.add("seconds for the kills", seconds, "s")
    if before is not None and after is not None:
        figures.add("device memory before", before / MIB, "MiB")
        figures.add("device memory after", after / MIB, "MiB")
        lost = (after - before) / MIB
        figures.add("device memory that is lost", lost, "MiB", at_most=LOST_MIB)


ROWS: dict[str, Callable[[Server, Figures, argparse.Namespace], None]] = {
    "regions": measure_regions,
    "copies": measure_copies,
    "chain": measure_chain,
    "small": measure_small,
    "kills": measure_kills,
}
_KILLS = "kills"  # these have a server of their own, whose processes do not use torch


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    if options.canned:
        serve_canned(options.canned.encode())
    if options.stand_in and STAND_IN not in os.environ:
        run_with_stand_in("benchmarks.gpu", has_torch=True)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(ROWS):
        raise SystemExit(f"there is no row {', '.join(sorted(unknown))}")
    figures = Figures()
    began = time.monotonic()
    try:
        models = MODELS | chain_models(options.mib * MIB // 4)
        _measure([name for name in wanted if name != _KILLS], models, figures, options)
        if _KILLS in wanted:
            lanes = [gpu_kills.lane_models(number) for number in range(options.lanes)]
            models = {name: each for lane in lanes for name, each in lane.items()}
            _measure([_KILLS], models, figures, options)
    finally:
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(figures.values, indent=1))
    figures.print_goals()
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


def _measure(
    rows: list[str], models: dict[str, Model], figures: Figures, options: argparse.Namespace
) -> None:
    if not rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder), models, stand_in=options.stand_in)
        try:
            server.await_ready()
            for name in rows:
                ROWS[name](server, figures, options)
        finally:
            server.stop()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    add = parser.add_argument
    add("--only", default=",".join(ROWS), help=f"rows of {', '.join(ROWS)}")
    add("--seconds", type=float, default=2.0, help="of each measurement")
    add("--rounds", type=int, default=2, help="of most measurements; the best counts")
    add("--mib", type=int, default=16, help="of the large tensors")
    add("--kills", type=int, default=1000, help="of workers, clients and regions")
    add("--kill-seconds", type=float, default=80.0, help="no kill begins later than this")
    add("--lanes", type=int, default=min(16, os.cpu_count() or 1), help="kills at the same time")
    add("--json", help="a file for the figures")
    add("--stand-in", action="store_true", help="without a GPU, with the library of tests/cuda")
    add("--canned", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
