# SPDX-License-Identifier: Apache-2.0
"""Kills of workers, clients and regions while tensors in GPU memory are under way.

Lanes work side by side, each with two models of its own and a client that sends one request after
the other. Such a request is in memory of its client, which the first model opens; that calls the
second one with memory of its own, and gets its answer in memory of the second. In turns, a lane

- kills the process of one of the two models, and loads the model again;
- kills a client that sends requests, and unregisters its regions;
- frees regions that another client uses at this moment, and unregisters them.

Every request has to get one answer, a result or an error. Clients that are killed are forked by a
process for each lane that has imported all it needs and never used CUDA.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu_setup import HTTP, ON_DEVICE, Model, Region, Server, await_true
from benchmarks.gpu_setup import model as answering_model
from pytriton.client.kserve.address import parse_address
from pytriton.client.kserve.http_client import kserve_client

COUNT = 1 << 19  # numbers in a tensor
SIZE = 4 * COUNT
TOLD = 100  # kills, after which a line says how far it is
ANSWER_S = 120.0  # a request without an answer for so long hangs
WORKERS, CLIENTS, REGIONS = "workers", "clients", "regions"
KINDS = (WORKERS, CLIENTS, REGIONS)
# Regions most often: a GPU starts and ends processes one by one, so that each of the others takes
# about a second, however many lanes there are.
IN_TURN = (WORKERS, REGIONS, REGIONS, CLIENTS, REGIONS, REGIONS)

_COPY = "from pytriton.runtime.cuda.device_array import copy_to_device\n"
_COPY += "from pytriton.runtime.pb_utils.tensor import DeviceTensor"
# Both keep the memory that they send, as allocators of frameworks do: it has the same numbers until
# the other process is a new one. The second number of an answer is the id of this process; floats
# have them exactly up to 2**24.
_SECOND = """
assert not x.is_cpu(), "expected an input on the GPU"
y = x.to_wire()[2].copy()
if getattr(self, "caller", None) != y[0]:
    self.caller = y[0]
    y[1] = os.getpid()
    self.kept = copy_to_device(y, 0)
return DeviceTensor.of_device("Y", self.kept)
"""
# The first number is the id of this one.
_FIRST = """
assert not x.is_cpu(), "expected an input on the GPU"
if not hasattr(self, "sent"):
    data = x.to_wire()[2].copy()
    data[0] = os.getpid()
    self.sent = copy_to_device(data, 0)
sent = DeviceTensor.of_device("X", self.sent)
call = pb_utils.InferenceRequest(
    inputs=[sent], requested_output_names=["Y"], model_name=self.second)
response = call.exec()
if response.has_error():
    raise pb_utils.TritonModelException(response.error().message())
y = response.output_tensors()[0]
assert not y.is_cpu(), "expected an answer on the GPU"
return y
"""


def lane_models(lane: int) -> dict[str, Model]:
    """Returns the models of a lane: the one that clients ask, then the one that it calls."""
    code, config = answering_model(_FIRST, top=_COPY, more=ON_DEVICE)
    code = code.replace("self.second", f'"{_names(lane)[1]}"')
    second = answering_model(_SECOND, top=_COPY, more=ON_DEVICE)
    return dict(zip(_names(lane), ((code, config), second), strict=True))


def _names(lane: int) -> tuple[str, str]:
    return f"first{lane}", f"second{lane}"


class Sender:
    """Sends requests with tensors in two regions over a connection, and counts their answers."""

    def __init__(self, port: int, model: str, regions: tuple[str, str]) -> None:
        self._port, self._path = port, f"/v2/models/{model}/infer"
        shared = [
            {"shared_memory_region": name, "shared_memory_byte_size": SIZE} for name in regions
        ]
        x = {"name": "X", "datatype": "FP32", "shape": [COUNT], "parameters": shared[0]}
        body = {"inputs": [x], "outputs": [{"name": "Y", "parameters": shared[1]}]}
        self._body = json.dumps(body).encode()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
        self.answers: Counter[str] = Counter()

    def send(self) -> bool:
        """Returns whether the answer is a result."""
        self._connection.request("POST", self._path, self._body)
        answer = self._connection.getresponse()
        text = answer.read()
        is_result = answer.status == http.HTTPStatus.OK
        self.answers["results" if is_result else "errors"] += 1
        if not is_result and "error" not in json.loads(text):
            raise AssertionError(f"expected an error, got {text!r}")
        return is_result

    def close(self) -> None:
        self._connection.close()


class Traffic:
    """A thread that sends requests until `stop`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                if not self._sender.send():
                    time.sleep(0.005)  # a model that is loaded just now needs the cores
        except BaseException as error:  # noqa: BLE001  `stop` raises it
            self._failure = error

    def await_results(self, count: int) -> None:
        """Wait until so many more requests had a result."""
        wanted = self._sender.answers["results"] + count
        await_true(
            lambda: self._sender.answers["results"] >= wanted or self._failure is not None,
            "a request with a result",
            ANSWER_S,
        )

    def stop(self) -> Counter[str]:
        """Returns how many answers there were; each request has had one."""
        self._is_over.set()
        self._thread.join(ANSWER_S + 10)
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            raise AssertionError("a request has no answer")
        self._sender.close()
        return self._sender.answers


class Lane:
    """Kills one thing after the other."""

    def __init__(self, server: Server, number: int) -> None:
        self.answers: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self._server = server
        self._number = number
        self._client = kserve_client(server.address(HTTP), {}, ANSWER_S)
        self._names = _names(number)
        self._turns = itertools.cycle((0, 1))
        arguments = [str(server.http_port), self._names[0]]
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_kills", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, kinds: Iterator[str]) -> None:
        """Kill as the kinds say, with a client that sends requests all the time."""
        with self._regions("lane") as (names, regions):
            target = regions[1]
            traffic = Traffic(Sender(self._server.http_port, self._names[0], names))
            kills = {
                WORKERS: lambda: self._kill_worker(traffic, target),
                CLIENTS: self._kill_client,
                REGIONS: self._end_regions,
            }
            try:
                for kind in kinds:
                    kills[kind]()
                    self.killed[kind] += 1
                traffic.await_results(1)  # so that both processes have a context, as before
            finally:
                self.answers += traffic.stop()

    @contextlib.contextmanager
    def _regions(self, name: str) -> Iterator[tuple[tuple[str, str], list[Region]]]:
        names = (f"{name}_in{self._number}", f"{name}_out{self._number}")
        regions = [Region(self._client, each, SIZE) for each in names]
        try:
            yield names, regions
        finally:
            for region in regions:
                region.close()

    def _kill_worker(self, traffic: Traffic, target: Region) -> None:
        """Kill the process of one of the models at any point of a request, and load it again."""
        turn = next(self._turns)
        traffic.await_results(2)  # the second one is of the process that is there now
        pid = int(target.read(2)[turn])
        if self._server.process.pid not in _ancestors(pid):
            raise AssertionError(f"the answer has {pid}, which is no process of a model")
        os.kill(pid, signal.SIGKILL)
        await_true(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the end of a process")
        # One that crashes often is not started again by itself.
        self._client.unload(self._names[turn])
        self._client.load(self._names[turn])

    def _kill_client(self) -> None:
        """Kill a client at any point of a request, and unregister its regions."""
        assert self._nursery.stdin is not None and self._nursery.stdout is not None  # noqa: PT018
        print("client", file=self._nursery.stdin, flush=True)
        pid, *names = self._nursery.stdout.readline().split()
        os.kill(int(pid), signal.SIGKILL)
        if self._nursery.stdout.readline() != "ended\n":
            raise AssertionError("a client was not killed")
        for name in names:
            self._client.unregister_device_memory(name)

    def _end_regions(self) -> None:
        """Free and unregister memory that is in use; requests get errors from then on."""
        names = (f"gone_in{self._number}", f"gone_out{self._number}")
        regions = [Region(self._client, each, SIZE) for each in names]
        traffic = Traffic(Sender(self._server.http_port, self._names[0], names))
        traffic.await_results(1)
        for region in regions:
            region.close(is_registered=False)
        for name in names:
            self._client.unregister_device_memory(name)
        answers = traffic.stop()
        self.answers += answers

    def close(self) -> None:
        """End what was started."""
        self._client.close()
        self._nursery.kill()
        self._nursery.communicate()


def _ancestors(pid: int) -> Iterator[int]:
    """Yields the parent of a process, its parent, and so on; nothing if there is none such."""
    while pid > 1:
        try:
            status = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        pid = int(status.rpartition(")")[2].split()[1])
        yield pid


def kill(lanes: list[Lane], count: int, seconds: float) -> float:
    """Kill so many, or as many as fit into the time; returns the seconds."""
    began = time.monotonic()
    order = iter(range(count))
    lock = threading.Lock()

    def kinds() -> Iterator[str]:
        while (spent := time.monotonic() - began) < seconds:
            with lock:
                number = next(order, None)
            if number is None:
                return
            if number and number % TOLD == 0:
                print(f"{number} kills after {spent:.0f} s", flush=True)
            yield IN_TURN[number % len(IN_TURN)]

    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
        jobs = [pool.submit(lane.run, kinds()) for lane in lanes]
        for job in jobs:
            job.result()
    return time.monotonic() - began


def warm_up(lanes: list[Lane]) -> None:
    """One kill of each kind in each lane, so that what is made once is there."""
    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
        for job in [pool.submit(lane.run, iter(KINDS)) for lane in lanes]:
            job.result()
    for lane in lanes:
        lane.killed.clear()
        lane.answers.clear()


def settled(read: Callable[[], int | None]) -> int | None:
    """Returns the memory in use when it changes no more: contexts end some time after processes."""
    last = read()
    for _ in range(20):
        if last is None:
            return None
        time.sleep(0.5)
        now = read()
        if now == last:
            return now
        last = now
    return last


# A client


def be_client(port: int, model: str) -> None:
    """Register memory, say so, and send requests until somebody kills this process."""
    client: Any = kserve_client(parse_address(f"http://127.0.0.1:{port}"), {}, ANSWER_S)
    names = (f"client_in{os.getpid()}", f"client_out{os.getpid()}")
    for name in names:
        Region(client, name, SIZE)
    sender = Sender(port, model, names)
    while not sender.send():  # its model may be loaded just now
        pass
    print(os.getpid(), *names, flush=True)
    while True:
        sender.send()


def fork_clients(port: int, model: str) -> None:
    """Fork a client for each line of the input, and say when it has ended."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            be_client(port, model)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    fork_clients(int(sys.argv[1]), sys.argv[2])
