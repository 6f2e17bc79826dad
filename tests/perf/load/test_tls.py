# SPDX-License-Identifier: Apache-2.0
"""Encrypted connections, through a proxy that decrypts them for a real server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading

import numpy as np
import pytest

from pytriton.client.kserve.address import Tls
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.link import tls_context
from pytriton.tools.perf.load.plan import Concurrency, InputSet, LoadPlan, LoadProtocol
from pytriton.tools.perf.load.process_load import ProcessLoad
from tests.perf.load.rig import run

X = np.arange(1 << 16, dtype=np.float32).reshape(1, -1)
INPUTS = [[InputSet({"x": X}, expected={"y": X})]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for localhost that is its own authority, and its key: a PEM file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=localhost", "-days", "2", "-keyout", str(path)]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(path) + ".crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (path.parent / "both.pem.crt").read_bytes())
    return str(path)


async def pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture(scope="module")
def proxies(server, certificate):
    """The ports of proxies for HTTP and gRPC, by protocol."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    loop = asyncio.new_event_loop()

    async def serve(port):
        async def forward(reader, writer):
            there = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
            finally:  # both have ended, or this is cancelled while a client is still connected
                there[1].transport.abort()
                writer.transport.abort()

        return await asyncio.start_server(forward, "localhost", 0, ssl=context)

    servers = {
        LoadProtocol.HTTP: loop.run_until_complete(serve(server.http_port)),
        LoadProtocol.GRPC: loop.run_until_complete(serve(server.grpc_port)),
    }
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield {protocol: each.sockets[0].getsockname()[1] for protocol, each in servers.items()}

    async def stop():
        for each in servers.values():
            each.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def plan_of(proxies, protocol, scheme="", **changes):
    return LoadPlan(f"{scheme}localhost:{proxies[protocol]}", protocol, "Ident", INPUTS, **changes)


@pytest.mark.parametrize("protocol", list(LoadProtocol))
def test_encrypted_load_gets_right_answers(proxies, certificate, protocol):
    records = run(plan_of(proxies, protocol, tls=Tls(ca_file=certificate)), Concurrency(2), 8)

    assert records.errors == {}
    assert len(records) == 8


@pytest.mark.parametrize("tls", [None, Tls(verify_host=False)])
def test_certificate_that_is_not_trusted_is_refused(proxies, tls):
    load = ProcessLoad(plan_of(proxies, LoadProtocol.HTTP, "https://", tls=tls))

    with pytest.raises(GeneratorError, match="certificate verify failed"):
        load.start(Concurrency(1))


def test_any_certificate_is_accepted_if_asked_for(proxies):
    plan = plan_of(proxies, LoadProtocol.GRPC, "grpcs://", tls=Tls(verify_peer=False))

    assert run(plan, Concurrency(1), 2).errors == {}


def test_files_that_are_no_certificates_are_named(tmp_path):
    with pytest.raises(GeneratorError, match=r"expected certificates and keys in .*no\.pem"):
        tls_context(Tls(ca_file=str(tmp_path / "no.pem")), ["h2"])


def test_certificate_of_a_client_may_be_der(certificate, tmp_path):
    pem = certificate + ".crt"
    der = tmp_path / "client.der"
    subprocess.run(["openssl", "x509", "-in", pem, "-outform", "DER", "-out", str(der)], check=True)
    tls = Tls(certificate_file=str(der), key_file=certificate, certificate_type="DER")

    assert tls_context(tls, ["h2"]).check_hostname
