# SPDX-License-Identifier: Apache-2.0
"""Memory: tensors larger than any /dev/shm, none that leaks, and all of it given back when idle."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess

import numpy as np
import psutil
import pytest

from tests.e2e.conftest import new_ports
from tests.e2e.flood import flood
from tests.e2e.http_client import call, infer, json_body
from tests.e2e.scripts import SERVE, Script
from tests.e2e.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.skipif(not pathlib.Path("/proc/self/maps").exists(), reason="needs /proc")

MIB = 1 << 20
SMALL_SHM = ["unshare", "--mount", "sh", "-c",
             'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh"]  # fmt: skip


def needs_memory(size: int) -> None:
    available = psutil.virtual_memory().available
    if available < size:
        pytest.skip(f"needs {size // MIB} MiB of free memory, {available // MIB} are there")


def needs_mounts() -> None:
    try:
        allowed = subprocess.run([*SMALL_SHM, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare command here")
    if allowed.returncode:
        pytest.skip(f"private mounts are not permitted: {allowed.stderr.decode().strip()}")


def round_trip(port: int, megabytes: int) -> None:
    """Send and receive a tensor piece by piece, so that the client itself needs no memory."""
    size = megabytes * MIB
    piece = np.random.default_rng(0).bytes(MIB)
    tensor = {"name": "x", "shape": [1, size // 4], "datatype": "FP32",
              "parameters": {"binary_data_size": size}}  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=6 * DEADLINE_S) as client:
        client.sendall(
            b"POST /v2/models/Model/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Inference-Header-Content-Length: %d\r\n\r\n%b" % (len(head) + size, len(head), head)
        )
        for number in range(megabytes):
            client.sendall(number.to_bytes(8, "little") + piece[8:])
        answer = client.makefile("rb")
        lines = iter(answer.readline, b"\r\n")
        status, *headers = [line.decode().strip() for line in lines]
        assert status == "HTTP/1.1 200 OK"
        fields = dict(line.split(": ") for line in headers)
        answer.read(int(fields["Inference-Header-Content-Length"]))
        for number in range(megabytes):
            assert answer.read(MIB) == number.to_bytes(8, "little") + piece[8:], number


def open_memory_bytes(descriptor: pathlib.Path) -> int:
    """What one descriptor refers to, if that is our shared memory and still open."""
    try:
        if "memfd:pytriton" not in os.readlink(descriptor):  # noqa: PTH115
            return 0
        return os.stat(descriptor).st_size  # noqa: PTH116  of what the descriptor refers to
    except FileNotFoundError:  # closed since the folder was listed
        return 0


def shared_memory_bytes(process: psutil.Process) -> int:
    """Shared memory that a process holds or has mapped, whoever made it."""
    held = sum(
        open_memory_bytes(descriptor)
        for descriptor in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()
    )
    mapped = sum(
        mapping.size
        for mapping in process.memory_maps(grouped=False)
        if "memfd:pytriton" in mapping.path
    )
    return held + mapped


IDLE_MODELS = """
async def echo_async(requests):
    return identity(requests)

with Triton() as triton:
    triton.bind("Function", identity, [X], [Y])
    triton.bind("Batch", batch(lambda x: {"y": x + 1}), [X], [Y])
    triton.bind("Model", echo_async, [X], [Y])
    triton.serve()
"""


@pytest.fixture(scope="module", autouse=True)
def idle_since_the_beginning(tmp_path_factory):
    """A server that had large tensors once and has been idle while other tests ran.

    Its two processes, and their shared memory before and after those tensors.
    """
    with Script(tmp_path_factory.mktemp("idle"), IDLE_MODELS, new_ports()) as script:
        script.await_ready()
        processes = [psutil.Process(script.process.pid), psutil.Process(script.server_pids()[0])]
        before = [shared_memory_bytes(process) for process in processes]
        array = np.zeros((1, 16 * MIB // 4), np.float32)
        for model in ("Function", "Batch", "Model"):
            for _ in range(2):
                infer(script.http_port, model, {"x": array})
        yield processes, before, [shared_memory_bytes(process) for process in processes]


def test_tensor_of_512_mib_passes_where_shared_memory_has_one(start_script):
    needs_memory(4096 * MIB)
    needs_mounts()
    script = start_script(
        "disk = os.statvfs('/dev/shm')\nprint(disk.f_blocks * disk.f_frsize, flush=True)\n" + SERVE,
        prefix=SMALL_SHM,
    )
    assert script.say() == MIB
    script.await_ready()
    round_trip(script.http_port, 512)

    assert script.named_memory() == set()
    shm = pathlib.Path("/proc", str(script.process.pid), "root", "dev", "shm")
    assert list(shm.iterdir()) == []


def test_tensor_of_one_gib_passes(start_script):
    needs_memory(8192 * MIB)
    round_trip(start_script(SERVE).await_ready().http_port, 1024)


FAILING = """
calls = 0

def tenth_fails(requests):
    global calls
    calls += 1
    if calls % 10 == 0:
        raise ValueError("a tenth of all batches")
    return identity(requests)

# The driver of GPUs opens devices when it likes.
config = TritonConfig(allow_gpu_metrics=False)
security_config = TritonSecurityConfig(restricted_endpoints=[])
with Triton(config=config, security_config=security_config) as triton:
    triton.bind("Model", tenth_fails, [X], [Y], config=ModelConfig(max_batch_size=32))
    triton.serve()
"""


def resources(process: psutil.Process) -> tuple[int, int]:
    return process.num_fds(), process.num_threads()


def growth(process: psutil.Process, before: tuple[int, int]) -> int:
    return max(now - then for now, then in zip(resources(process), before, strict=True))


ROUND = 20_000  # requests


def memory(processes: list[psutil.Process]) -> np.ndarray:
    return np.array([process.memory_info().rss for process in processes])


def test_many_requests_leave_no_trace(start_script):
    script = start_script(FAILING, quiet=True).await_ready()
    processes = [psutil.Process(script.process.pid), psutil.Process(script.server_pids()[0])]
    body = json_body({"x": np.ones((1, 2), np.float32)})
    request = (
        b"POST /v2/models/Model/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    flood(script.http_port, [request], 200, connections=1)  # starts the threads of the log
    at_rest = [resources(process) for process in processes]
    before = call(script.http_port, "/v2/models/Model/stats").json["model_stats"][0]
    statuses = flood(script.http_port, [request], ROUND, connections=32)  # fills caches
    grown = np.full(2, np.inf)
    for _ in range(5):
        size = memory(processes)
        statuses += flood(script.http_port, [request], ROUND, connections=32)
        grown = np.minimum(grown, memory(processes) - size)
        # A leak of 16 bytes a request shows in each round, but what the allocators keep does not.
        if max(grown) < 16 * ROUND:
            break

    assert max(grown) < 16 * ROUND, grown
    assert 0.05 < statuses[500] / statuses.total() < 0.2
    (account,) = call(script.http_port, "/v2/models/Model/stats").json["model_stats"]
    for name, status in (("success", 200), ("fail", 500)):
        earlier = before["inference_stats"][name]["count"]
        assert account["inference_stats"][name]["count"] - earlier == statuses[status]
    # Less than before where the last check for readiness was not over yet.
    assert eventually(lambda: max(map(growth, processes, at_rest)) <= 0), at_rest


def test_shared_memory_goes_back_when_nothing_is_asked(idle_since_the_beginning):
    processes, before, held = idle_since_the_beginning

    assert all(size > 16 * MIB for size in held)
    # Each side learns from the other what is read, so it takes a few rounds of idling.
    assert eventually(
        lambda: [shared_memory_bytes(process) for process in processes] == before, 2 * DEADLINE_S
    ), [shared_memory_bytes(process) for process in processes]
