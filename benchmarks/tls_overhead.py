# SPDX-License-Identifier: Apache-2.0
"""Compares an encrypted server with one that is not, and watches health while clients connect.

    python -m benchmarks.tls_overhead --rounds 10

Two servers with the same model get the same small requests over connections that stay open, in
turns, so that what else the machine does falls on both. Then many clients connect to the encrypted
one at once, while one that is connected asks for its health: what counts is the slowest answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import pathlib
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

SCRIPT = pathlib.Path(__file__).with_name("addsub.lua")
KEYS = {
    "ECDSA P-256": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "RSA 2048": ("rsa:2048",),
}
PLAIN = "plain"


@batch
def add_sub(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    return {"add": a + b, "sub": a - b}


def make_certificate(folder: pathlib.Path, kind: tuple[str, ...]) -> dict[str, pathlib.Path]:
    """Make a certificate for localhost; the settings of a server with it."""
    certificate, key = folder / f"{kind[0]}.pem", folder / f"{kind[0]}.key"
    command = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-days", "30"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return {"tls_cert": certificate, "tls_key": key}


@contextlib.contextmanager
def serving(front_ends: int, settings: dict[str, Any]) -> Iterator[int]:
    """Serve AddSub; gives the port of HTTP."""
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
        yield int(triton.addresses.http.rpartition(":")[2])


def rate(scheme: str, port: int, connections: int, seconds: float) -> float:
    """Returns requests in a second."""
    url = f"{scheme}://127.0.0.1:{port}/v2/models/AddSub/infer"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(SCRIPT), url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = json.loads(output.splitlines()[-1])
    assert not report["failed"], output
    return float(report["requests"] / report["duration_us"] * 1e6)


def compare(plain_port: int, tls_port: int, options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {PLAIN: [], "TLS": []}
    places = {PLAIN: ("http", plain_port), "TLS": ("https", tls_port)}
    for turn in range(options.rounds + 1):
        for name, place in places.items():
            found = rate(*place, options.clients, options.seconds)
            if turn:  # the first one is a warm-up
                rates[name].append(found)
    ratios = [tls / plain for plain, tls in zip(rates[PLAIN], rates["TLS"], strict=True)]
    for what, pick in (("median", statistics.median), ("best", max)):
        plain, tls = pick(rates[PLAIN]), pick(rates["TLS"])
        print(f"requests/s, {what}: plain {plain:.0f}, TLS {tls:.0f}, ratio {tls / plain:.2f}")
    print(f"ratio of two rounds that follow each other, median: {statistics.median(ratios):.2f}")


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
    with tempfile.TemporaryDirectory() as folder, serving(options.front_ends, {}) as plain_port:
        for name, kind in KEYS.items():
            settings = make_certificate(pathlib.Path(folder), kind)
            print(f"{name}, {options.front_ends} front ends")
            with serving(options.front_ends, settings) as port:
                if options.rounds and shutil.which("wrk"):
                    compare(plain_port, port, options)
                watch(port, settings["tls_cert"], options.handshakes)


if __name__ == "__main__":
    main()
