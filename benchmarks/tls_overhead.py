# SPDX-License-Identifier: Apache-2.0
"""Compares an encrypted server with one that is not, and watches health while clients connect.

    python -m benchmarks.tls_overhead --rounds 10

Two servers with the same model get the same small requests, as `tritonclient` sends them over HTTP
and gRPC, over connections that stay open, in turns, so that what else the machine does falls on
both. Then many clients connect to the encrypted one at once, while one that is connected asks for
its health: what counts is the slowest answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import pathlib
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.grpc_loads import parse_report
from benchmarks.recorded_requests import GrpcCall
from benchmarks.servers import HERE
from benchmarks.user_loads import http_file
from benchmarks.user_requests import FORMS
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

KEYS = {
    "ECDSA P-256": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "RSA 2048": ("rsa:2048",),
}
PLAIN = "plain"
Load = Callable[[str, int], float]  # of a scheme and a port; returns requests in a second


@batch
def add_sub(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    return {"add": a + b, "sub": a - b}


def make_certificate(folder: pathlib.Path, kind: tuple[str, ...]) -> dict[str, pathlib.Path]:
    """Make a certificate for localhost; returns the settings of a server with it."""
    certificate, key = folder / f"{kind[0]}.pem", folder / f"{kind[0]}.key"
    command = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-days", "30"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return {"tls_cert": certificate, "tls_key": key}


@contextlib.contextmanager
def serving(front_ends: int, settings: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Serve AddSub; yields the ports of HTTP and gRPC."""
    config = TritonConfig(
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        frontend_processes=front_ends,
        **settings,
    )
    with Triton(config=config) as triton:
        triton.bind(
            "AddSub",
            add_sub,
            [Tensor(name=name, dtype=np.float32, shape=(1,)) for name in ("a", "b")],
            [Tensor(name=name, dtype=np.float32, shape=(1,)) for name in ("add", "sub")],
            config=ModelConfig(max_batch_size=64),
        )
        triton.run()
        http_port, grpc_port = (
            int(address.rpartition(":")[2])
            for address in (triton.addresses.http, triton.addresses.grpc)
        )
        yield http_port, grpc_port


def http_load(port: int, folder: pathlib.Path, options: argparse.Namespace) -> Load:
    """Returns a load of HTTP requests, recorded at an open port, with an id and two headers."""
    form = FORMS["headers"]
    _outputs, request = form.record(port, form, form.examples[0])
    assert isinstance(request, bytes)
    file = folder / "request"
    file.write_bytes(http_file(request))

    def rate(scheme: str, port: int) -> float:
        command = ["wrk", "-t1", f"-c{options.clients}", f"-d{options.seconds}s"]
        command += ["-s", str(HERE / "recorded.lua"), f"{scheme}://127.0.0.1:{port}"]
        output = _output([*command, "--", str(file)])
        report = json.loads(output.splitlines()[-1])
        assert not report["failed"], output
        return float(report["requests"] / report["duration_us"] * 1e6)

    return rate


def grpc_load(port: int, folder: pathlib.Path, options: argparse.Namespace) -> Load:
    """Returns a load of gRPC calls with a deadline, recorded at an open port."""
    form = FORMS["deadline"]
    _outputs, call = form.record(port, form, form.examples[0])
    assert isinstance(call, GrpcCall)
    file = folder / "message"
    file.write_bytes(call.message)
    headers = [word for name, value in call.metadata for word in ("-H", f"{name}: {value}")]

    def rate(scheme: str, port: int) -> float:
        command = ["h2load", "-m1", "-t1", f"-c{options.clients}", f"-D{options.seconds}"]
        command += ["--warm-up-time=1", "-d", str(file), *headers]
        output = _output([*command, f"{scheme}://127.0.0.1:{port}{call.path}"])
        report = parse_report(output)
        assert not report.unsuccessful, output
        assert report.data_bytes > 0, output  # a refused call is a success without data to h2load
        return report.rate

    return rate


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare(load: Load, plain_port: int, tls_port: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {PLAIN: [], "TLS": []}
    places = {PLAIN: ("http", plain_port), "TLS": ("https", tls_port)}
    for turn in range(rounds + 1):
        for name, place in places.items():
            found = load(*place)
            if turn:  # the first one is a warm-up
                rates[name].append(found)
    ratios = [tls / plain for plain, tls in zip(rates[PLAIN], rates["TLS"], strict=True)]
    for what, pick in (("median", statistics.median), ("best", max)):
        plain, tls = pick(rates[PLAIN]), pick(rates["TLS"])
        print(f"  requests/s, {what}: plain {plain:.0f}, TLS {tls:.0f}, ratio {tls / plain:.2f}")
    print(f"  ratio of two rounds that follow each other, median: {statistics.median(ratios):.2f}")


async def connect_all(port: int, count: int) -> float:
    """Make connections at once; returns the seconds until all handshakes are complete."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    begin = time.perf_counter()
    opened = await asyncio.gather(
        *[asyncio.open_connection("127.0.0.1", port, ssl=context) for _ in range(count)]
    )
    elapsed = time.perf_counter() - begin
    for _, writer in opened:
        writer.transport.abort()
    return elapsed


def slowest_answer(connection: http.client.HTTPConnection, until: subprocess.Popen[str]) -> float:
    """Ask for health until a process ends; returns the longest wait in milliseconds."""
    slowest = 0.0
    while until.poll() is None:
        begin = time.perf_counter()
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        slowest = max(slowest, time.perf_counter() - begin)
        time.sleep(0.002)
    return slowest * 1000


def watch(port: int, certificate: pathlib.Path, count: int) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    code = "import sys; from benchmarks import tls_overhead; tls_overhead.client(sys.argv[1:])"
    for clients in (0, count):
        command = [sys.executable, "-c", code, str(port), str(clients)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            slowest_ms = slowest_answer(connection, process)
            assert process.stdout is not None
            elapsed = float(process.stdout.read())
        print(
            f"  {clients} clients: health took at most {slowest_ms:.1f} ms, all in {elapsed:.2f} s"
        )
    connection.close()


def client(arguments: list[str]) -> None:
    """The process that connects; it prints how long that took."""
    port, count = map(int, arguments)
    print(asyncio.run(connect_all(port, count)))


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--handshakes", type=int, default=1024)
    parser.add_argument("--front-ends", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, serving(options.front_ends, {}) as plain_ports:
        folder = pathlib.Path(name)
        http_rate = http_load(plain_ports[0], folder, options)
        grpc_rate = grpc_load(plain_ports[1], folder, options)
        for key, kind in KEYS.items():
            settings = make_certificate(folder, kind)
            with serving(options.front_ends, settings) as tls_ports:
                if options.rounds:
                    print(f"{key}, HTTP, {options.front_ends} front ends")
                    compare(http_rate, plain_ports[0], tls_ports[0], options.rounds)
                    print(f"{key}, gRPC, {options.front_ends} front ends")
                    compare(grpc_rate, plain_ports[1], tls_ports[1], options.rounds)
                watch(tls_ports[0], settings["tls_cert"], options.handshakes)


if __name__ == "__main__":
    main()
