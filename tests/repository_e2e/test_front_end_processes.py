# SPDX-License-Identifier: Apache-2.0
"""A server with front ends in processes of their own: signals, kills, its log."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc

from tests.e2e.http_client import binary_body, call, is_port_free, json_body
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HOLD,
    code,
    config,
    decoupled_code,
    model,
)
from tests.repository_e2e.server_process import is_worker_zygote
from tests.repository_e2e.streams import open_stream

TWO = ["--frontend-processes=2"]
# A front end under load that is killed costs a second of the processor.
KILLS = int(os.environ.get("PYTRITON_FRONT_END_KILLS", "8"))
REPOSITORY = {
    "plain": model(),
    "held": model(code(HOLD + "\ny = x")),
    "count": model(
        decoupled_code("for number in range(int(x[0, 0])): send([[number]])"),
        settings=config(DECOUPLED, max_batch_size=8),
    ),
}


def front_end_zygote(server):
    (zygote,) = [
        child for child in psutil.Process(server.pid).children() if not is_worker_zygote(child)
    ]
    return zygote


def front_ends(server):
    """The living front ends, oldest first."""
    with contextlib.suppress(ValueError, psutil.NoSuchProcess):
        children = front_end_zygote(server).children()
        return [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
    return []


def serving_pid(server, port: int) -> int:
    """The front end of the client with this port; 0 if there is none now."""
    for process in front_ends(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in process.net_connections():
                if each.raddr and each.raddr.port == port:
                    return process.pid
    return 0


def owner_of(server, port: int) -> int:
    """Like `serving_pid`; waits, as the system's list may lack one while others come and go."""
    found = 0

    def find() -> int:
        nonlocal found
        found = serving_pid(server, port)
        return found

    assert eventually(find)
    return found


def segments(server) -> list[str]:
    """The shared memory that its processes have open."""
    return [
        f"{process.name()}: {target}"
        for process in (psutil.Process(server.pid), *server.descendants())
        for target in descriptor_targets(process.pid)
        if "memfd:pytriton" in target
    ]


def descriptors(pid: int) -> Counter[str]:
    """How many descriptors a process has, by kind."""
    return Counter(target.partition(":[")[0] for target in descriptor_targets(pid))


def descriptor_targets(pid: int) -> list[str]:
    targets = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                targets.append(str(path.readlink()))
    return targets


class Client:
    """A client that keeps its connection and sends one request after the other."""

    def __init__(self, server) -> None:
        self._server = server
        self._stopped = threading.Event()
        self.statuses: list[int] = []
        self.losses: list[str] = []  # how often its connection was lost
        self.wrong = 0
        self.port = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()

    def _run(self):
        small = (json_body({"X": np.full((1, 2), 7, np.float32)}), {})
        large = binary_body({"X": np.full((1, 50_000), 7, np.float32)})
        while not self._stopped.is_set():
            connection = http.client.HTTPConnection(
                "127.0.0.1", self._server.http_port, timeout=DEADLINE_S
            )
            try:
                connection.connect()
                self.port = connection.sock.getsockname()[1]
                while not self._stopped.is_set():
                    for body, headers in (small, large):
                        connection.request("POST", "/v2/models/plain/infer", body, headers)
                        response = connection.getresponse()
                        answer = response.read()
                        self.statuses.append(response.status)
                        self.wrong += b'"shape":[1' not in answer
            except (OSError, http.client.HTTPException) as error:
                self.losses.append(type(error).__name__)
            finally:
                connection.close()


def is_quiet(server):
    """No request is queued, as the metrics say."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        counts = pending_counts(server)
        return counts and not any(counts.values())
    return False


def pending_counts(server):
    """How many requests of each model are queued."""
    page = call(server.metrics_port, "/metrics").body.decode()
    pattern = r'^nv_inference_pending_request_count\{model="(\w+)".*\} (\d+)'
    return {name: int(count) for name, count in re.findall(pattern, page, re.MULTILINE)}


@pytest.fixture
def server(start_server):
    made = start_server(REPOSITORY, flags=TWO)
    return made.await_ready()


def test_two_processes_serve_both_protocols(server):
    assert len(front_ends(server)) == 2
    pids = set()
    with contextlib.ExitStack() as stack:
        for server_port in (server.http_port, server.grpc_port) * 4:
            address = ("127.0.0.1", server_port)
            client = stack.enter_context(socket.create_connection(address))
            port = client.getsockname()[1]
            pids.add(owner_of(server, port))
    assert pids == {each.pid for each in front_ends(server)}
    assert server.infer("plain", 1, 2) == [1, 2]
    with server.grpc_client() as client:
        tensor = triton_grpc.InferInput("X", [1, 3_000_000], "FP32")
        data = np.arange(3_000_000, dtype=np.float32)[None]
        tensor.set_data_from_numpy(data)
        answer = client.infer("plain", [tensor]).as_numpy("Y")
        assert (answer == data).all()
    with open_stream(server) as stream:
        stream.send("count", 300)
        stream.await_end()
    assert stream.values == list(range(300))


def test_front_ends_that_are_killed_under_load_are_replaced(start_server):
    flags = ["--frontend-processes=4", "--allow-gpu-metrics=false"]  # drivers open devices
    server = start_server(REPOSITORY, flags=flags).await_ready()
    core = psutil.Process(server.pid)
    assert eventually(lambda: is_quiet(server))  # uvloop keeps a descriptor after the first client
    before = descriptors(core.pid)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(4)]
        assert eventually(lambda: all(len(each.statuses) > 20 for each in clients))
        for _ in range(KILLS):
            assert eventually(lambda: len(front_ends(server)) >= 2)
            owners = [serving_pid(server, each.port) for each in clients]
            losses = [len(each.losses) for each in clients]
            counts = [len(each.statuses) for each in clients]
            victim = front_ends(server)[0]
            victim.kill()
            assert eventually(lambda v=victim: v.pid not in {e.pid for e in front_ends(server)})
            assert eventually(
                lambda counts=counts: all(
                    len(each.statuses) > count + 2
                    for each, count in zip(clients, counts, strict=True)
                )
            )
            for each, owner, had in zip(clients, owners, losses, strict=True):
                if owner not in (0, victim.pid):
                    assert len(each.losses) == had, "a client of another front end was disturbed"
        assert eventually(lambda: len(front_ends(server)) == 4)
    for each in clients:
        assert set(each.statuses) == {200}
        assert each.wrong == 0
    assert sum(len(each.losses) for each in clients) >= KILLS // 4
    assert eventually(lambda: is_quiet(server))
    assert eventually(lambda: server.zombies() == [])
    # Idle segments are given back after some rounds of five seconds, in all processes.
    assert eventually(lambda: not segments(server)), segments(server)
    assert eventually(lambda: descriptors(core.pid) <= before), descriptors(core.pid) - before
    assert (
        server.stderr.count("killed by SIGKILL") + server.stdout.count("killed by SIGKILL") == KILLS
    )
    assert server.end() == 0
    assert eventually(lambda: not server.descendants())


def test_stopped_front_end_is_replaced_and_disturbs_nobody_else(server):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(4)]
        assert eventually(lambda: all(len(each.statuses) > 20 for each in clients))
        old = {each.pid for each in front_ends(server)}
        owners = {each: owner_of(server, each.port) for each in clients}
        victim = front_ends(server)[0]
        victim.suspend()
        assert eventually(lambda: victim.pid not in {each.pid for each in front_ends(server)})
        assert eventually(lambda: len(front_ends(server)) == 2)
        counts = [len(each.statuses) for each in clients]
        assert eventually(
            lambda: all(
                len(each.statuses) > count + 20 for each, count in zip(clients, counts, strict=True)
            )
        )

    assert {each.pid for each in front_ends(server)} & old == old - {victim.pid}
    assert set(owners.values()) == old
    for each, owner in owners.items():
        assert set(each.statuses) == {200}
        assert each.wrong == 0
        assert len(each.losses) == (owner == victim.pid), each.losses
    text = f"(process {victim.pid}) did not answer for 3 s and did nothing; it is killed"
    assert text in server.output
    assert server.output.count("it is killed") == 1


def test_requests_of_a_killed_front_end_leave_the_queue(server):
    server.hold("held")
    body = json_body({"X": np.ones((1, 1), np.float32)})
    with contextlib.ExitStack() as stack:
        lost = []
        for _ in range(6):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.http_port), timeout=DEADLINE_S)
            )
            head = (
                f"POST /v2/models/held/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(body)}"
            )
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            lost.append(client)
        ports = {each: each.getsockname()[1] for each in lost}
        owners = {each: owner_of(server, port) for each, port in ports.items()}
        victim = front_ends(server)[0]
        victim.kill()
        gone = [each for each in lost if owners[each] == victim.pid]
        kept = [each for each in lost if owners[each] != victim.pid]
        assert gone
        assert kept
        for client in gone:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""
        server.let_go("held")
        for client in kept:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert eventually(lambda: is_quiet(server))
    assert server.infer("held", 5) == [5]


def test_killed_zygote_is_replaced_with_all_its_front_ends(server):
    with Client(server) as client:
        assert eventually(lambda: len(client.statuses) > 20)
        first = front_end_zygote(server)
        old = {each.pid for each in front_ends(server)}
        first.kill()
        assert eventually(lambda: len({e.pid for e in front_ends(server)} - old) == 2)
        count = len(client.statuses)
        assert eventually(lambda: len(client.statuses) > count + 20)

    assert set(client.statuses) == {200}
    assert front_end_zygote(server).pid != first.pid
    assert server.infer("plain", 4) == [4]
    assert server.end() == 0
    assert eventually(lambda: not server.descendants())


def test_all_processes_end_with_the_core(server):
    with Client(server) as client:
        assert eventually(lambda: len(client.statuses) > 20)
        server.process.kill()
        server.process.wait()
        assert eventually(lambda: not server.descendants())
        client._stopped.set()

    assert all(is_port_free(port) for port in server.ports)


def test_termination_under_load_finishes_accepted_requests(server):
    server.hold("held")
    with ThreadPoolExecutor(8) as pool, Client(server) as client:
        accepted = [pool.submit(server.infer, "held", number) for number in range(8)]
        assert eventually(lambda: len(client.statuses) > 20)
        # One of them runs, the others wait: all are accepted.
        assert eventually(lambda: pending_counts(server)["held"] == len(accepted) - 1)
        server.signal(signal.SIGTERM)
        server.let_go("held")
        assert [each.result(DEADLINE_S) for each in accepted] == [[n] for n in range(8)]
        assert server.exit_code() == 0
        client._stopped.set()

    assert set(client.statuses) <= {200, 404, 503}  # 404: its model is gone already
    assert not server.descendants()
    assert "front end" not in server.stderr


def test_interrupt_of_the_whole_group_ends_in_order(server):
    os.killpg(server.pid, signal.SIGINT)

    assert server.exit_code() == 0
    assert not server.descendants()


def test_log_has_lines_of_front_ends_with_their_process(start_server):
    broken = model(code(initialize="raise ValueError('it broke')"))
    server = start_server(
        {"broken": broken, "plain": model()},
        flags=[*TWO, "--exit-on-error=false", "--log-verbose=1"],
    ).await_ports()
    pids = {str(each.pid) for each in front_ends(server)}
    with contextlib.ExitStack() as stack:
        for _ in range(4):  # connections at the same time, so that both processes have some
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
            stack.callback(connection.close)
            connection.request("GET", "/v2/health/ready")
            assert connection.getresponse().status == 400
    pattern = re.compile(r"^I\d{4} [\d:.]+ (\d+) .*The server is not ready: (.*)$", re.MULTILINE)

    assert eventually(lambda: len(pattern.findall(server.output)) == 2), server.output
    found = pattern.findall(server.output)
    assert {pid for pid, _ in found} == pids
    assert all("it broke" in text for _, text in found)
