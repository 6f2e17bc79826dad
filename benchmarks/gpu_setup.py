# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of GPUs share: models, servers, memory of clients, NVML, and the stand-in.

With the stand-in, the library of tests/cuda is CUDA's driver, and a small module is torch: nothing
is fast then, but all that the benchmarks do can be tried on a machine without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytriton.client.kserve.address import Address, parse_address
from pytriton.client.kserve.http_client import kserve_client
from pytriton.runtime.cuda import driver as cuda_driver

MIB = 1 << 20
HTTP, GRPC = "http", "grpc"
STAND_IN = "BENCHMARKS_GPU_STAND_IN"  # set in processes that use the stand-in
ROOT = pathlib.Path(__file__).parent.parent
STAND_IN_FOLDER = ROOT / "tests" / "cuda"

CONFIG = """backend: "python"
max_batch_size: {batch}
input [{{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}]
instance_group [{{ kind: KIND_CPU }}]
{more}
"""
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
{top}

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(each.inputs()[0])]) for each in requests]

    def answer(self, x):
{answer}
"""
Model = tuple[str, str]  # model.py, which is empty for an ensemble, and config.pbtxt


def model(answer: str, *, top: str = "", more: str = "") -> Model:
    """A model that answers each request by itself: `answer` is code that has the input x."""
    lines = "".join(f"        {line}\n" for line in answer.strip().splitlines())
    return MODEL.format(answer=lines, top=top), CONFIG.format(batch=0, more=more)


def ensemble(*names: str) -> Model:
    """An ensemble in which X goes through models to Y."""
    tensors = ["X", *(f"t{number}" for number in range(1, len(names))), "Y"]
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 '
        f'input_map {{ key: "X" value: "{tensors[index]}" }} '
        f'output_map {{ key: "Y" value: "{tensors[index + 1]}" }} }}\n'
        for index, name in enumerate(names)
    )
    config = CONFIG.format(batch=0, more=f"ensemble_scheduling {{ {steps} }}")
    config = config.replace('backend: "python"', 'platform: "ensemble"')
    return "", config.replace("instance_group [{ kind: KIND_CPU }]\n", "")


class Server:
    """A server with the models, until `stop`."""

    def __init__(
        self,
        folder: pathlib.Path,
        models: dict[str, Model],
        *,
        stand_in: bool,
        flags: Sequence[str] = (),
    ) -> None:
        for name, (source, config) in models.items():
            version = folder / "models" / name / "1"
            version.mkdir(parents=True)
            if source:
                (version / "model.py").write_text(source)
            (version.parent / "config.pbtxt").write_text(config)
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(3)
        command = [sys.executable, "-m", "pytriton.server"]
        if stand_in:
            command = [sys.executable, str(STAND_IN_FOLDER / "gpu_server.py")]
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

    def counts(self, family: str) -> dict[str, int]:
        """Returns the values of a metric by their labels, as they are written."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        lines = urllib.request.urlopen(url).read().decode().splitlines()
        found = (line[len(family) :].rpartition(" ") for line in lines if line.startswith(family))
        return {labels: int(float(value)) for labels, _, value in found if labels[:1] == "{"}

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


class Nvml:
    """What the management library tells of GPU 0, by ctypes; nothing where it is absent."""

    _SENT, _RECEIVED = 0, 1  # counters of the bus

    def __init__(self) -> None:
        self._device: ctypes.c_void_p | None = None
        if STAND_IN in os.environ:
            print("NVML is not used: the GPU is a stand-in", flush=True)
            return
        self._device = ctypes.c_void_p()
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
            self._check(self._library.nvmlInit_v2())
            place = ctypes.byref(self._device)
            self._check(self._library.nvmlDeviceGetHandleByIndex_v2(0, place))
        except OSError as error:
            print(f"NVML is not used: {error}", flush=True)
            self._device = None

    def used_bytes(self) -> int | None:
        """Returns the memory in use."""
        if self._device is None:
            return None
        info = (ctypes.c_ulonglong * 3)()  # total, free, used
        self._check(self._library.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(info)))
        return info[2]

    def bus_kib(self) -> tuple[int, int] | None:
        """Returns what the bus carried to the GPU and from it in the last 20 ms, in KiB/s."""
        found = []
        for counter in (self._RECEIVED, self._SENT):
            value = ctypes.c_uint()
            if self._device is None or self._library.nvmlDeviceGetPcieThroughput(
                self._device, counter, ctypes.byref(value)
            ):
                return None
            found.append(value.value)
        return found[0], found[1]

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise OSError(f"NVML failed with error {code}")


def run_with_stand_in(module: str, *, has_torch: bool) -> None:
    """Begin anew where the stand-in is found."""
    from tests.cuda.fake_library import environment  # noqa: PLC0415

    more = {STAND_IN: "1", "CUDA_VISIBLE_DEVICES": "0"}
    paths = [*([str(STAND_IN_FOLDER / "stand_in")] if has_torch else []), str(ROOT), *sys.path]
    variables = {**environment(), **more, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env=variables, check=False).returncode)


def await_true(is_true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until something holds; the benchmark ends if it does not."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} has not happened in {seconds:.0f} s")
        time.sleep(0.01)
