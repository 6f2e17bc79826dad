# SPDX-License-Identifier: Apache-2.0
"""Small requests as users send them, recorded from client libraries and sent again and again.

The servers run at the same time and get each load in turns; the best of the turns counts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence

from benchmarks import processes, servers
from benchmarks.http_loads import WrkReport
from benchmarks.measurement import Measurement
from benchmarks.recorded_requests import GrpcCall
from benchmarks.servers import HERE, RunningServer, System
from benchmarks.turns import PORTS, TURNS
from benchmarks.user_requests import (
    COMPOSED_FORMS,
    COMPOSED_MODELS,
    FORMS,
    HOLE,
    SMALL_FORMS,
    USER_MODELS,
    Form,
    record,
)

ROWS: Mapping[str, Sequence[Form]] = {"users": SMALL_FORMS, "composed": COMPOSED_FORMS}
CONNECTIONS = {"users": (64,), "composed": (16, 64)}
# What a user waits for who sends one request after the other, in the forms that most users send.
ALONE = ("binary", "json", "grpc_client", "deadline")

STATIC_HEADERS = {(":method", "POST"): 0x83, (":scheme", "http"): 0x86}  # of HPACK
STATIC_ENTRIES = 61
INDEXED_NAMES = (
    ":path", ":authority", "content-type", "te", "grpc-accept-encoding", "grpc-timeout",
    "user-agent",
)  # fmt: skip


def measure(
    row: str,
    peers: pathlib.Path | None,
    port: int,
    seconds: float,
    forms: Iterable[str] | None = None,
    connections: Sequence[int] | None = None,
    instances: int = 1,
) -> dict[str, list[Measurement]]:
    """The figures of each system, by its title, for the chosen forms of a row, or for all."""
    chosen = [form for form in ROWS[row] if forms is None or form.key in forms]
    systems = _systems(row, peers, port, instances) if chosen else []
    figures: dict[str, list[Measurement]] = {system.title: [] for system in systems}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = [
            stack.enter_context(servers.running(system, first))
            for first, system in zip(itertools.count(port, PORTS), systems)
        ]
        for form in chosen:
            files = {server.port: recorded_files(server, form, folder) for server in running}
            for count in connections or _connections(row, form):
                for title, best in _turns(running, form, files, count, seconds).items():
                    figures[title] += best
    return figures


def _connections(row: str, form: Form) -> Sequence[int]:
    return (1, *CONNECTIONS[row]) if form.key in ALONE else CONNECTIONS[row]


def _systems(row: str, peers: pathlib.Path | None, port: int, instances: int) -> list[System]:
    """Both of ours and Triton, where it is there, each on ports of its own."""
    models = USER_MODELS if row == "users" else COMPOSED_MODELS
    keys = ["ours", "repository", "triton"] if row == "users" else ["repository", "triton"]
    systems = [
        system
        for first, key in zip(itertools.count(port, PORTS), keys)
        for system in servers.known_systems(peers, first)
        if system.key == key
    ]
    return [servers.with_users_models(system, models, instances) for system in systems]


def _turns(
    running: Sequence[RunningServer],
    form: Form,
    files: Mapping[int, Sequence[pathlib.Path]],
    connections: int,
    seconds: float,
) -> dict[str, list[Measurement]]:
    """The best of the turns, by the titles of systems."""
    reports: dict[str, list[WrkReport]] = {server.system.title: [] for server in running}
    times_us: dict[str, list[float]] = {title: [] for title in reports}
    threads = load_threads(connections)
    for _ in range(TURNS):
        for server in running:
            used_s = processes.cpu_seconds(server.pid)
            report = send(server, form, files[server.port], connections, seconds, threads)
            used_s = processes.cpu_seconds(server.pid) - used_s
            reports[server.system.title].append(report)
            times_us[server.system.title].append(1e6 * used_s / report.calls)
    row = f"{form.title} c={connections}"
    return {title: _best(row, reports[title], times_us[title]) for title in reports}


def _best(row: str, reports: Sequence[WrkReport], times_us: Sequence[float]) -> list[Measurement]:
    figures = [Measurement(row, max(report.rate for report in reports), "req/s")]
    if row.endswith("c=1"):  # with more connections it says no more than the rate
        p50_us = min(report.p50_us for report in reports)
        figures.append(Measurement(f"{row} p50", p50_us, "us", higher_is_better=False))
    time_row = f"{row}, processor time"
    figures.append(Measurement(time_row, min(times_us), "us", higher_is_better=False))
    return figures


def load_threads(connections: int) -> int:
    """One on two cores; more where a server with many cores would outrun one."""
    return min(connections, 8, max(1, len(os.sched_getaffinity(0)) // 2))


def chosen_forms(names: str) -> list[str]:
    """The keys of forms, as the command line has them."""
    keys = names.split(",")
    if unknown := [key for key in keys if key not in FORMS]:
        raise ValueError(f"expected some of {', '.join(FORMS)}, got {', '.join(unknown)}")
    return keys


def recorded_files(server: RunningServer, form: Form, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the requests of a form, as load generators read them, after checking the answers."""
    files = []
    for number, request in enumerate(record(server, form)):
        file = folder / f"{form.key}.{server.port}.{number}"
        content = grpc_file(request) if isinstance(request, GrpcCall) else http_file(request)
        file.write_bytes(content)
        files.append(file)
    return files


def http_file(request: bytes) -> bytes:
    """The request, to the default port of servers, as if there had been no relay."""
    return re.sub(rb"(?i)(\r\nhost: [^\r:]*):\d+", rb"\1:8000", request, count=1)


def grpc_file(call: GrpcCall) -> bytes:
    """A call as grpc_load.c reads it."""
    headers = [(n, "127.0.0.1:8001" if n == ":authority" else v) for n, v in call.headers]
    parts = [*header_blocks(headers), call.message]
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def header_blocks(headers: Sequence[tuple[str, str]]) -> tuple[bytes, bytes]:
    """The blocks of the first and of all later calls of a connection, as gRPC's library has them.

    It lets the server remember what all calls have, and sends metadata of users each time.
    """
    remembered = [pair for pair in headers if pair[0] in INDEXED_NAMES and HOLE not in pair[1]]
    first, later = bytearray(), bytearray()
    for pair in headers:
        if pair in STATIC_HEADERS:
            first.append(STATIC_HEADERS[pair])
            later.append(STATIC_HEADERS[pair])
        elif pair in remembered:
            first += b"\x40" + _literal(*pair)
            # The entry that came last has the lowest number.
            later.append(0x80 | STATIC_ENTRIES + len(remembered) - remembered.index(pair))
        else:
            first += b"\x00" + _literal(*pair)
            later += b"\x00" + _literal(*pair)
    return bytes(first), bytes(later)


def _literal(name: str, value: str) -> bytes:
    return b"".join(_string(text.encode()) for text in (name, value))


def _string(text: bytes) -> bytes:
    """A string of HPACK, without Huffman's code."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    prefix, rest = bytearray([127]), length - 127
    while rest >= 128:
        prefix.append(rest % 128 | 128)
        rest //= 128
    return bytes(prefix) + bytes([rest]) + text


def send(
    server: RunningServer,
    form: Form,
    files: Sequence[pathlib.Path],
    connections: int,
    seconds: float,
    threads: int = 1,
) -> WrkReport:
    """Sends recorded requests, one at a time on each connection; all of them have to succeed."""
    names = [str(file) for file in files]
    length, threads = max(1, round(seconds)), min(threads, connections)
    if form.is_grpc:
        command = [str(grpc_load()), str(server.grpc_port), str(threads), str(connections)]
        command += [str(length), *names]
    else:
        command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{length}s"]
        command += ["-s", str(HERE / "recorded.lua"), server.url, "--", *names]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = WrkReport(**json.loads(output.strip().splitlines()[-1]))
    if report.failed or not report.requests:
        raise RuntimeError(f"{form.title}: {report.failed} of {report.requests} requests failed")
    return report


@functools.cache
def grpc_load() -> pathlib.Path:
    """The load generator of calls that differ, which is compiled when it is first needed."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="grpc_load"))
    program = folder / "grpc_load"
    command = ["cc", "-O2", "-pthread", "-o", str(program), str(HERE / "grpc_load.c")]
    subprocess.run(command, check=True)
    return program
