# SPDX-License-Identifier: Apache-2.0
"""A real server behind a proxy: whom its access log names, and whom wrong credentials slow down."""

from __future__ import annotations

import http.client
import json
import subprocess

import grpc
import pytest

from tests.access_policies import PolicyFolder
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import config, model

PROXY, STRANGER = "127.0.0.1", "127.0.0.2"
WRONG_KEY = "ptk_{:012x}_" + "A" * 43
POLICY = """
max_failures_per_minute = 100
[principals.office]
apis = ["*"]
"""


class ProxiedServer:
    """A server that believes one address, and requests from that one and from another."""

    def __init__(self, folder, start, front_ends: int) -> None:
        self.policy = PolicyFolder(folder, POLICY)
        self.key = self.policy.key("office")
        flags = [
            f"--auth-config={self.policy.path}",
            f"--frontend-processes={front_ends}",
            f"--trusted-proxies=10.0.0.0/8,{PROXY}",
            "--access-log=access.txt",
            "--access-log-format=json",
        ]
        repository = {"plain": model(settings=config("dynamic_batching { }"))}
        self.server = start(repository, flags=flags).await_ready()

    def ask(self, path: str, source: str, forwarded_for: str, key: str = "") -> int:
        """The status of a request that comes from an address of this machine."""
        headers = {"x-api-key": key or self.key, "x-forwarded-for": forwarded_for}
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.http_port, timeout=DEADLINE_S, source_address=(source, 0)
        )
        connection.request("GET", path, headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    def ask_by_http2(self, path: str, forwarded_for: str) -> None:
        url = f"http://127.0.0.1:{self.server.http_port}{path}"
        headers = ["-H", f"x-forwarded-for: {forwarded_for}", "-H", f"x-api-key: {self.key}"]
        command = ["curl", "-sSf", "--http2-prior-knowledge", *headers, "-o", "/dev/null", url]
        subprocess.run(command, check=True)

    def ask_by_grpc(self, method: str, *fields: tuple[str, str]) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{self.server.grpc_port}") as channel:
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            call(b"", metadata=[("x-api-key", self.key), *fields], timeout=DEADLINE_S)

    def clients(self, path: str) -> list[str]:
        """Who sent the requests for a path, as the access log says."""
        lines = (self.server.folder / "access.txt").read_text().splitlines()
        return [each["client"] for each in map(json.loads, lines) if each["path"] == path]


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def proxied(request, tmp_path_factory, start_module_server):
    folder = tmp_path_factory.mktemp("proxied")
    return ProxiedServer(folder, start_module_server, request.param)


def test_access_log_names_the_client_behind_a_proxy_only(proxied):
    path = "/v2/models/plain/config"

    proxied.ask(path, PROXY, "1.1.1.1, 203.0.113.7, 10.3.3.3")
    assert eventually(lambda: proxied.clients(path) == ["203.0.113.7"])
    proxied.ask(path, STRANGER, "203.0.113.7")

    assert eventually(lambda: len(proxied.clients(path)) == 2)
    assert proxied.clients(path)[1].startswith(f"{STRANGER}:")


def test_access_log_names_clients_of_streams_and_calls(proxied):
    prefix = "/inference.GRPCInferenceService"

    proxied.ask_by_http2("/v2/models/plain/stats", "2001:db8::7")
    proxied.ask_by_grpc("ServerMetadata", ("x-forwarded-for", "203.0.113.8"))
    proxied.ask_by_grpc(
        "ServerLive", ("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.9")
    )
    proxied.ask_by_grpc("ServerReady", ("forwarded", 'for="[2001:db8::9]:80"'))

    assert eventually(lambda: proxied.clients("/v2/models/plain/stats") == ["2001:db8::7"])
    assert eventually(lambda: proxied.clients(f"{prefix}/ServerMetadata") == ["203.0.113.8"])
    assert eventually(lambda: proxied.clients(f"{prefix}/ServerLive") == ["203.0.113.9"])
    assert eventually(lambda: proxied.clients(f"{prefix}/ServerReady") == ["2001:db8::9"])


def test_wrong_credentials_slow_down_one_client_behind_a_proxy(proxied):
    # What is no key at all counts while an address waits, too: after these it waits a minute.
    attacker = [proxied.ask("/v2", PROXY, "203.0.113.7", "no key") for _ in range(240)]
    assert eventually(lambda: proxied.ask("/v2", PROXY, "203.0.113.7", WRONG_KEY.format(1)) == 429)
    slowed = [proxied.ask("/v2", PROXY, "203.0.113.7", WRONG_KEY.format(i)) for i in range(20)]
    other = proxied.ask("/v2", PROXY, "203.0.113.8", WRONG_KEY.format(99))

    assert set(attacker) == {401}
    assert set(slowed) == {429}
    assert other == 401
