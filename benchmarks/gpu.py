# SPDX-License-Identifier: Apache-2.0
"""What GPUs cost and gain: copies, CUDA shared memory, a small model, and what is left after kills.

    python -m benchmarks.gpu --seconds 5 --kills 1000 --json gpu.json

It prints the figures of docs/gpu.md. Models on the GPU need torch; `--only` chooses rows. With
`--stand-in`, the library of tests/cuda stands for CUDA's driver: nothing is fast then, but all that
this module does can be tried on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytriton.client.kserve.address import Address, parse_address
from pytriton.client.kserve.http_client import kserve_client
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.tools.perf.load.plan import (
    Concurrency,
    InputSet,
    LoadPlan,
    LoadProtocol,
    TensorMemory,
)
from pytriton.tools.perf.load.process_load import ProcessLoad

MIB = 1 << 20
LANES = 8  # kills at the same time
HTTP, GRPC = "http", "grpc"
STAND_IN = "BENCHMARKS_GPU_STAND_IN"  # set in processes that use the library of tests/cuda
ROOT = pathlib.Path(__file__).parent.parent

CONFIG = """backend: "python"
max_batch_size: {batch}
input [{{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}]
instance_group [{{ kind: KIND_CPU }}]
{more}
"""
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
TOGETHER = "dynamic_batching { }"
MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
{top}

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(each.inputs()[0])]) for each in requests]

    def answer(self, x):
        {answer}
"""
BATCH_MODEL = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1024, 1024, bias=False).to("{device}").eval()

    @torch.inference_mode()
    def execute(self, requests):
        parts = [each.inputs()[0].as_numpy() for each in requests]
        x = torch.as_tensor(np.concatenate(parts)).to("{device}", non_blocking=True)
        y = self.layer(x).cpu().numpy()
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", part)]) for part in np.split(y, ends)
        ]
"""


def model(answer: str, *, top: str = "", initialize: str = "pass") -> str:
    """A model.py that answers each request by itself."""
    return MODEL.format(answer=answer, top=top, initialize=initialize)


ECHO = 'return pb_utils.Tensor.from_dlpack("Y", x)'
MODELS = {
    "host": (model('return pb_utils.Tensor("Y", x.as_numpy())'), CONFIG.format(batch=0, more="")),
    "region": (model(ECHO), CONFIG.format(batch=0, more=ON_DEVICE)),
    "region_host": (
        model('return pb_utils.Tensor("Y", x.as_numpy())'),
        CONFIG.format(batch=0, more=""),
    ),
}
# As most models have it: the input as a tensor of torch, and an output of torch.
REGION_WITH_TORCH = (
    model(
        'return pb_utils.Tensor.from_dlpack("Y", torch.from_dlpack(x))',
        top="import torch",
    ),
    CONFIG.format(batch=0, more=ON_DEVICE),
)
TORCH_MODELS = {
    # Its output is in another block than its input, as that of a GPU is, but was not there.
    "host_copy": (
        model('return pb_utils.Tensor("Y", x.as_numpy().copy())'),
        CONFIG.format(batch=0, more=""),
    ),
    "gpu": (
        model(
            'return pb_utils.Tensor.from_dlpack("Y", torch.as_tensor(x.as_numpy()).cuda())',
            top="import torch",
        ),
        CONFIG.format(batch=0, more=""),
    ),
    "small_gpu": (BATCH_MODEL.format(device="cuda"), CONFIG.format(batch=64, more=TOGETHER)),
    "small_host": (BATCH_MODEL.format(device="cpu"), CONFIG.format(batch=64, more=TOGETHER)),
}


class Server:
    """A server with the models, until `stop`."""

    def __init__(
        self,
        folder: pathlib.Path,
        models: dict[str, tuple[str, str]],
        *,
        stand_in: bool,
        flags: Sequence[str] = (),
    ) -> None:
        for name, (source, config) in models.items():
            version = folder / "models" / name / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(source)
            (version.parent / "config.pbtxt").write_text(config)
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(3)
        command = [sys.executable, "-m", "pytriton.server"]
        if stand_in:
            command = [sys.executable, str(ROOT / "tests" / "cuda" / "gpu_server.py")]
        self._log = (folder / "server.log").open("wb")
        self.process = subprocess.Popen(
            [
                *command,
                f"--model-repository={folder / 'models'}",
                "--model-control-mode=explicit",
                *(f"--load-model={name}" for name in models),
                f"--http-port={self.http_port}",
                f"--grpc-port={self.grpc_port}",
                f"--metrics-port={self.metrics_port}",
                "--allow-client-shm=true",
                *flags,
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._log_path = folder / "server.log"

    def await_ready(self) -> None:
        """Wait until all models are loaded."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready")
                return
            time.sleep(0.1)
        raise SystemExit(f"the server is not ready:\n{self._log_path.read_text()[-9000:]}")

    def address(self, protocol: str) -> Address:
        """Where requests go."""
        port = self.http_port if protocol == HTTP else self.grpc_port
        return parse_address(f"{protocol}://127.0.0.1:{port}")

    def stop(self) -> None:
        """End the server; what it cannot end in time is killed."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Region:
    """Memory of the GPU that a server knows under a name."""

    def __init__(self, client: Any, name: str, size: int) -> None:
        self._client, self._name, self.size = client, name, size
        driver = self._driver = cuda_driver.load()
        driver.retain_context(0)
        with driver.using(0):
            self.address = driver.allocate(max(size, 2 * MIB))
            handle = driver.export_memory(self.address)
        client.register_device_memory(name, handle, 0, size)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Copy an array into it."""
        with self._driver.using(0):
            self._driver.copy_to_device(self.address, array.ctypes.data, array.nbytes)
            self._driver.synchronize()

    def read(self, count: int) -> np.ndarray[Any, Any]:
        """Returns the first numbers in it."""
        array = np.empty(count, np.float32)
        with self._driver.using(0):
            self._driver.copy_to_host(array.ctypes.data, self.address, array.nbytes)
        return array

    def close(self, *, is_registered: bool = True) -> None:
        """Free it."""
        if is_registered:
            self._client.unregister_device_memory(self._name)
        with self._driver.using(0):
            self._driver.free(self.address)
        self._driver.release_context(0)


@contextlib.contextmanager
def regions(server: Server, size: int) -> Iterator[tuple[str, str, Region, Region]]:
    """An input region and an output region, with their names."""
    client = kserve_client(server.address(HTTP), {}, 60.0)
    number = next(_numbers)
    names = f"in{os.getpid()}_{number}", f"out{os.getpid()}_{number}"
    first, second = (Region(client, name, size) for name in names)
    try:
        yield (*names, first, second)
    finally:
        first.close()
        second.close()
        client.close()


_numbers = itertools.count(1)


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
    """What was measured, printed line by line."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, name: str, value: float, unit: str, note: str = "") -> None:
        """Note and print a figure."""
        self.values[name] = round(value, 3)
        print(f"{name:<64} {value:>12,.2f} {unit} {note}".rstrip(), flush=True)


def measure_copies(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """Identity of large tensors over HTTP: on the host, and through the GPU."""
    count = options.mib * MIB // 4
    rates: dict[str, float] = {}
    for _ in range(options.rounds):  # in turns, so that what else happens falls on both
        for name in ("host", "gpu", "host_copy"):
            rate = generated(server, name, count, 4, seconds=options.seconds)
            rates[name] = max(rates.get(name, 0.0), rate)
    for name, rate in rates.items():
        label = f"identity of {options.mib} MiB over HTTP, 4 clients, {name}"
        figures.add(label, rate * options.mib, "MiB/s in and out each")
    figures.add("identity through the GPU as a part of that on the host", _ratio(rates), "")
    ratio = rates["host_copy"] / rates["host"]
    figures.add("a copy on the host as a part of identity there", ratio, "")


def _ratio(rates: dict[str, float]) -> float:
    host, gpu, *_ = rates.values()
    return gpu / host


def measure_regions(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """CUDA shared memory of one client, over both protocols."""
    for mib in (options.mib, 16 * options.mib):
        size = mib * MIB
        with regions(server, size) as (first, second, source, target):
            source.write(np.full(size // 4, 7, np.float32))
            for protocol, port in ((HTTP, server.http_port), (GRPC, server.grpc_port)):
                with _without_package(f"tritonclient over {protocol}"):
                    names = (first, second)
                    rate = tritonclient_rate(protocol, port, size, names, options.seconds, "region")
                    label = f"CUDA shared memory, {mib} MiB, {protocol}, 1 tritonclient"
                    figures.add(label, rate, "requests/s")
                    assert target.read(8).tolist() == [7.0] * 8, "the output is another one"
        for protocol in (HTTP, GRPC):
            memory = {"shared_memory": TensorMemory.CUDA, "output_region_bytes": size}
            load = {"protocol": protocol, "seconds": options.seconds, **memory}
            rate = generated(server, "region", size // 4, 1, **load)
            label = f"CUDA shared memory, {mib} MiB, {protocol}, 1 connection of the generator"
            figures.add(label, rate, "requests/s")
    with canned_server(options.mib * MIB, "out") as port, _without_package("tritonclient"):
        rate = tritonclient_rate(HTTP, port, options.mib * MIB, ("in", "out"), 2.0, "region")
        figures.add("tritonclient alone, http, against canned answers", rate, "requests/s")
    with (
        regions(server, options.mib * MIB) as (first, second, _, _),
        _without_package("tritonclient"),
    ):
        arguments = (options.mib * MIB, (first, second), options.seconds, "region_host")
        rate = tritonclient_rate(HTTP, server.http_port, *arguments)
        label = f"CUDA shared memory, {options.mib} MiB, http, model on the host"
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
    figures.add("small model on the GPU as a part of that on the host", _ratio(rates), "")


# Kills


def used_bytes() -> int | None:
    """Returns the memory in use on GPU 0: by NVML, or nvidia-smi where its module is missing."""
    try:
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception as error:  # noqa: BLE001  whatever it is, the other way is tried
        print(f"NVML is not used: {error!r}", flush=True)
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout) * MIB
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"nor is nvidia-smi: {error!r}", flush=True)
        return None


def measure_kills(server: Server, figures: Figures, options: argparse.Namespace) -> None:
    """Kill workers, clients and regions; then the GPU has as much memory as before."""
    per_kind = -(-options.kills // 3)
    _kill_all(server, min(LANES, per_kind))  # so that what is made once is there
    before = used_bytes()
    began = time.monotonic()
    counts = _kill_all(server, per_kind)
    figures.add("kills of workers, clients and regions", sum(counts.values()), f"{counts}")
    figures.add("seconds for them", time.monotonic() - began, "s")
    after = _settled(before)
    if before is not None and after is not None:
        figures.add("device memory before", before / MIB, "MiB")
        figures.add("device memory after", after / MIB, "MiB")


def _settled(before: int | None) -> int | None:
    """Returns the memory in use when it falls no more."""
    last = None
    for _ in range(20):
        now = used_bytes()
        if now is None or before is None or now <= before or now == last:
            return now
        last = now
        time.sleep(0.5)
    return last


def _kill_all(server: Server, per_kind: int) -> dict[str, int]:
    kinds = {"workers": kill_worker, "clients": kill_client, "regions": end_region}
    counts = {}
    for kind, kill in kinds.items():
        with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
            lanes = [(server, number % LANES) for number in range(per_kind)]
            locks = [threading.Lock() for _ in range(LANES)]
            jobs = [pool.submit(_in_lane, locks[lane[1]], kill, *lane) for lane in lanes]
            counts[kind] = sum(1 for job in jobs if job.result() is None)
    return counts


def _in_lane(lock: threading.Lock, kill: Callable[[Server, int], None], *lane: Any) -> None:
    with lock:
        kill(*lane)


def kill_worker(server: Server, lane: int) -> None:
    """Kill the process of an instance that has a client's memory open, and load its model again."""
    client = kserve_client(server.address(HTTP), {}, 120.0)
    name = f"lane{lane}"
    with regions(server, 2 * MIB) as (first, second, _, target):
        _infer(server, name, (first, second), 2 * MIB)
        pid = int(target.read(1)[0])
        os.kill(pid, signal.SIGKILL)
        _await(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    client.unload(name)  # one that crashes often is not started again by itself
    client.load(name)
    client.close()


def kill_client(server: Server, lane: int) -> None:
    """Kill a client while it sends requests, and unregister its regions."""
    arguments = ["--client", f"{server.http_port},{server.grpc_port},lane{lane}"]
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        names = process.stdout.readline().split()
        process.kill()
    client = kserve_client(server.address(HTTP), {}, 60.0)
    for name in names:
        client.unregister_device_memory(name)
    client.close()


def end_region(server: Server, lane: int) -> None:
    """Free memory that is registered and in use, then unregister it."""
    client = kserve_client(server.address(HTTP), {}, 60.0)
    names = [f"gone{os.getpid()}_{next(_numbers)}" for _ in range(2)]
    made = [Region(client, name, 2 * MIB) for name in names]
    _infer(server, f"lane{lane}", (names[0], names[1]), 2 * MIB)
    for region in made:
        region.close(is_registered=False)
    for name in names:
        client.unregister_device_memory(name)
    client.close()


def _infer(server: Server, name: str, names: tuple[str, str], size: int) -> None:
    """Send a request over HTTP, without a package."""
    shared = [{"shared_memory_region": region, "shared_memory_byte_size": size} for region in names]
    x = {"name": "X", "datatype": "FP32", "shape": [size // 4], "parameters": shared[0]}
    body = {"inputs": [x], "outputs": [{"name": "Y", "parameters": shared[1]}]}
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{name}/infer"
    urllib.request.urlopen(url, json.dumps(body).encode(), timeout=120).read()


def _await(is_true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit("expected something that has not happened in a minute")
        time.sleep(0.01)


def be_client(server: Any, name: str) -> None:
    """Register memory, say so, and send requests until somebody ends this process."""
    with regions(server, 2 * MIB) as (first, second, _, _):
        _infer(server, name, (first, second), 2 * MIB)
        print(first, second, flush=True)
        while True:
            _infer(server, name, (first, second), 2 * MIB)


class _Ports:
    def __init__(self, http_port: int, grpc_port: int) -> None:
        self.http_port, self.grpc_port = http_port, grpc_port

    address = Server.address


ROWS: dict[str, Callable[[Server, Figures, argparse.Namespace], None]] = {
    "copies": measure_copies,
    "regions": measure_regions,
    "small": measure_small,
    "kills": measure_kills,
}
NEED_TORCH = {"copies", "small"}
# The first number of its answer is its process id, which floats have exactly up to 2**24.
PID_MODEL = (
    model("x = np.array(x.as_numpy()); x[0] = os.getpid(); return pb_utils.Tensor('Y', x)"),
    CONFIG.format(batch=0, more=""),
)


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    if options.canned:
        serve_canned(options.canned.encode())
    if options.client:
        http_port, grpc_port, name = options.client.split(",")
        be_client(_Ports(int(http_port), int(grpc_port)), name)
    if options.stand_in and STAND_IN not in os.environ:
        run_with_stand_in("benchmarks.gpu")
    rows = [name for name in options.only.split(",") if name in ROWS]
    if options.stand_in:
        rows = [name for name in rows if name not in NEED_TORCH]
    models = dict(MODELS)
    if NEED_TORCH & set(rows):
        models |= TORCH_MODELS
    if "kills" in rows:
        models |= {f"lane{number}": PID_MODEL for number in range(LANES)}
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder), models, stand_in=options.stand_in)
        try:
            server.await_ready()
            for name in rows:
                ROWS[name](server, figures, options)
        finally:
            server.stop()
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(figures.values, indent=1))


def run_with_stand_in(module: str) -> None:
    """Begin anew where the library that stands for the driver is found."""
    from tests.cuda.fake_library import environment  # noqa: PLC0415

    more = {STAND_IN: "1", "CUDA_VISIBLE_DEVICES": "0"}
    variables = {**environment(), **more, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env=variables, check=False).returncode)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    add = parser.add_argument
    add("--only", default=",".join(ROWS), help=f"rows of {', '.join(ROWS)}")
    add("--seconds", type=float, default=5.0, help="of each measurement")
    add("--rounds", type=int, default=2, help="of those that are compared; the best counts")
    add("--mib", type=int, default=16, help="of the large tensors")
    add("--kills", type=int, default=1000, help="a third each of workers, clients and regions")
    add("--json", help="a file for the figures")
    add("--stand-in", action="store_true", help="without a GPU, with the library of tests/cuda")
    add("--canned", help=argparse.SUPPRESS)
    add("--client", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
