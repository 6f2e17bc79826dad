# SPDX-License-Identifier: Apache-2.0
"""Who may speak to the server: TLS, client certificates, restricted protocols."""

from __future__ import annotations

import asyncio
import subprocess

import grpc
import grpc.aio
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from pytriton.triton import TritonSecurityConfig
from tests.e2e.grpc_server import add_sub_inputs, grpc_server

TOKEN = "let-me-in"
HEADER = "triton-grpc-protocol-triton-access-token"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and a server's and a client's certificate of it: paths of PEM files."""
    folder = tmp_path_factory.mktemp("certificates")
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    key_options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(
        "req", "-x509", *key_options, "-subj", "/CN=authority", "-days", "2",
        "-keyout", str(ca_key), "-out", str(ca),
    )  # fmt: skip
    for name in ("server", "client"):
        request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
        openssl(
            "req", *key_options, "-subj", f"/CN={name}",
            "-keyout", str(folder / f"{name}.key"), "-out", str(request),
        )  # fmt: skip
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            "x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca_key),
            "-CAcreateserial", "-days", "2", "-extfile", str(extensions),
            "-out", str(folder / f"{name}.pem"),
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tls_server(certificates):
    with grpc_server(**tls_settings(certificates)) as running:
        yield running


@pytest.fixture(scope="module")
def mutual_server(certificates):
    settings = tls_settings(certificates)
    settings.update(grpc_use_ssl_mutual=True, grpc_root_cert=str(certificates / "ca.pem"))
    with grpc_server(**settings) as running:
        yield running


def tls_settings(certificates):
    return {
        "grpc_use_ssl": True,
        "grpc_server_cert": str(certificates / "server.pem"),
        "grpc_server_key": str(certificates / "server.key"),
    }


def tls_client(server, certificates, *, with_certificate=False):
    options = {"root_certificates": str(certificates / "ca.pem")}
    if with_certificate:
        options["private_key"] = str(certificates / "client.key")
        options["certificate_chain"] = str(certificates / "client.pem")
    return triton_grpc.InferenceServerClient(server.address, ssl=True, **options)


def test_encrypted_server_is_reached_with_its_authority(tls_server, certificates):
    with tls_client(tls_server, certificates) as client:
        assert client.infer("add_sub", add_sub_inputs()).as_numpy("add").item() == 3.0


def test_plain_client_is_not_served_by_an_encrypted_server(tls_server):
    with (
        triton_grpc.InferenceServerClient(tls_server.address) as client,
        pytest.raises(InferenceServerException) as failure,
    ):
        client.is_server_live()

    assert failure.value.status() == "StatusCode.UNAVAILABLE"


def test_mutual_server_takes_a_client_with_a_certificate(mutual_server, certificates):
    with tls_client(mutual_server, certificates, with_certificate=True) as client:
        assert client.infer("add_sub", add_sub_inputs()).as_numpy("sub").item() == -1.0


def test_mutual_server_refuses_a_client_without_one(mutual_server, certificates):
    with (
        tls_client(mutual_server, certificates) as client,
        pytest.raises(InferenceServerException) as failure,
    ):
        client.is_server_live()

    assert failure.value.status() == "StatusCode.UNAVAILABLE"


@pytest.fixture(scope="module")
def restricted_server():
    security = TritonSecurityConfig(
        access_token=TOKEN, restricted_endpoints=["statistics", "inference"]
    )
    with grpc_server(security) as running:
        yield running


def test_restricted_protocols_ask_for_the_token(restricted_server):
    with triton_grpc.InferenceServerClient(restricted_server.address) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match=HEADER) as failure:
            client.infer("add_sub", add_sub_inputs())
        with pytest.raises(InferenceServerException, match=HEADER):
            client.get_inference_statistics("add_sub", headers={HEADER: "guess"})
        result = client.infer("add_sub", add_sub_inputs(), headers={HEADER: TOKEN})

        assert failure.value.status() == "StatusCode.UNAVAILABLE"
        assert result.as_numpy("add").item() == 3.0


async def refusals(address, count, *, says_all):
    """What so many streams without a token end with."""
    streams = "/inference.GRPCInferenceService/ModelStreamInfer"
    found = []
    async with grpc.aio.insecure_channel(address) as channel:
        for _ in range(count):
            call = channel.stream_stream(streams)(iter([b"request"]) if says_all else None)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call.read() if not says_all else await anext(aiter(call))
            found.append((failure.value.code(), failure.value.details()))
    return found


@pytest.mark.parametrize("says_all, count", [(True, 100), (False, 2)])
def test_refused_stream_hears_why(restricted_server, says_all, count):
    ends = asyncio.run(refusals(restricted_server.address, count, says_all=says_all))

    text = f"This protocol is restricted, expecting header '{HEADER}'"
    assert set(ends) == {(grpc.StatusCode.UNAVAILABLE, text)}
