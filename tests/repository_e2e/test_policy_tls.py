# SPDX-License-Identifier: Apache-2.0
"""Client certificates as credentials of a policy, over HTTPS and over encrypted gRPC."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.access_policies import PolicyFolder
from tests.certificates import CertificateFolder
from tests.e2e.http_client import json_body
from tests.repository_e2e.model_files import config, model

BODY = json_body({"X": np.ones((1, 1), np.float32)}).decode()
POLICY = """
[principals.robot]
apis = ["inference"]
models = ["plain"]
[principals.person]
apis = ["inference"]
[[certificates]]
subject = "CN=client"
principal = "robot"
"""


class CertifiedServer:
    """A server that knows clients by their certificates, and requests of such clients."""

    def __init__(self, folder, start, front_ends: int) -> None:
        self.files = CertificateFolder(folder)
        self.policy = PolicyFolder(folder, POLICY)
        self.key = self.policy.key("person")
        # Of the same authority, but no rule of the policy knows it.
        self.unknown = self.files.authority.issue("unknown").write(folder, "unknown")
        server_files = self.files.server_files
        flags = [
            f"--tls-cert={server_files['tls_cert']}",
            f"--tls-key={server_files['tls_key']}",
            f"--tls-client-ca={self.files.ca}",
            "--tls-client-auth=optional",
            f"--auth-config={self.policy.path}",
            f"--frontend-processes={front_ends}",
        ]
        settings = config("dynamic_batching { }")
        repository = {"plain": model(settings=settings), "other": model(settings=settings)}
        self.server = start(repository, flags=flags).await_ports()

    @property
    def client(self):
        return self.files.client_cert, self.files.client_key

    def ask(self, *options: str, certificate=None, name: str = "plain", count: int = 1) -> str:
        """The statuses of requests that curl sends over one connection."""
        given = () if certificate is None else ("--cert", certificate[0], "--key", certificate[1])
        url = f"https://127.0.0.1:{self.server.http_port}/v2/models/{name}/infer"
        shown = ["-o", "/dev/null", "-w", "%{http_code} ", "-d", BODY]
        parts = [[*shown, url, *(["--next"] if left else [])] for left in reversed(range(count))]
        common = ["--cacert", self.files.ca, *given, *options]
        words = [word for part in parts for word in (*common, *part)]
        done = subprocess.run(
            ["curl", "-sS", *map(str, words)], stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def ask_by_grpc(self, certificate=None) -> None:
        tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        chain, key = (None, None) if certificate is None else map(str, certificate)
        with triton_grpc.InferenceServerClient(
            f"127.0.0.1:{self.server.grpc_port}",
            ssl=True,
            root_certificates=str(self.files.ca),
            private_key=key,
            certificate_chain=chain,
        ) as client:
            client.infer("plain", [tensor])


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def certified(request, tmp_path_factory, start_module_server):
    folder = tmp_path_factory.mktemp("certified")
    return CertifiedServer(folder, start_module_server, request.param)


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_certificate_has_the_rights_of_its_principal(certified, version):
    alone = certified.ask(version)
    with_it = certified.ask(version, certificate=certified.client, count=40)
    elsewhere = certified.ask(version, certificate=certified.client, name="other")
    unknown = certified.ask(version, certificate=certified.unknown, count=2)
    with_key = certified.ask(version, "-H", f"x-api-key: {certified.key}")

    assert alone == "401"
    assert with_it == " ".join(["200"] * 40)
    assert elsewhere == "403"
    assert unknown == "401 401"
    assert with_key == "200"


def test_equal_requests_of_other_connections_do_not_share_a_certificate(certified):
    # The same bytes each time: a head that was seen before is not decided on again.
    answers = [
        certified.ask("--http1.1", certificate=certificate)
        for certificate in (certified.client, None, certified.client, certified.unknown)
    ]

    assert answers == ["200", "401", "200", "401"]


def test_certificate_counts_over_grpc(certified):
    certified.ask_by_grpc(certified.client)

    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        certified.ask_by_grpc()
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        certified.ask_by_grpc(certified.unknown)


def test_certificate_of_a_foreign_authority_ends_the_handshake(certified):
    foreign = (certified.files.other_cert, certified.files.other_key)

    with pytest.raises(subprocess.CalledProcessError):
        certified.ask(certificate=foreign)
