# SPDX-License-Identifier: Apache-2.0
"""Encrypted ports with real clients: certificates, versions, and new certificates under load."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from pytriton.client import (
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
    Tls,
)
from pytriton.client.exceptions import PyTritonClientError
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.certificates import CertificateFolder
from tests.differential.grpc_case import SERVICE
from tests.e2e.conftest import new_ports
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports

ONES = np.ones((1, 2), np.float32)
PREDICT = "/v1/endpoints/1/deployedModels/2:predict"
HEALTH_PATHS = {
    "http": "/v2/health/ready",
    "metrics": "/metrics",
    "page": "/",
    "sagemaker": "/ping",
    "vertex_ai": "/health",
}

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@batch
def double(x):
    return {"y": 2 * x}


def countdown(requests):
    yield [{"y": request["x"]} for request in requests]


class TlsServer:
    """A server whose ports are all encrypted."""

    def __init__(self, triton, ports, certificates):
        self.triton = triton
        self.certificates = certificates
        self.ports = ports
        self.http = f"127.0.0.1:{ports['http']}"
        self.grpc = f"127.0.0.1:{ports['grpc']}"

    def context(self, certificate=None, key=None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context

    def https(self, **files) -> http.client.HTTPSConnection:
        port = self.ports["http"]
        return http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=DEADLINE_S, context=self.context(**files)
        )

    def shown_certificate(self, port) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock,
            self.context().wrap_socket(sock, server_hostname="localhost") as client,
        ):
            return client.getpeercert(binary_form=True)

    def shows(self, issued) -> bool:
        """Whether every process shows a certificate on every port; clients come to them in turn."""
        ports = {self.ports[name] for name in ("http", "grpc", "metrics")}
        return all(self.shown_certificate(port) == issued.der for port in ports for _ in range(6))

    def metrics(self) -> str:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.ports["metrics"], timeout=DEADLINE_S, context=self.context()
        )
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()


@contextlib.contextmanager
def tls_server(folder, monkeypatch, **settings):
    certificates = CertificateFolder(folder)
    clouds = free_ports(2)
    monkeypatch.setenv("AIP_PREDICT_ROUTE", PREDICT)
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    ports = new_ports()
    config = TritonConfig(
        **ports,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        allow_http=True,
        allow_grpc=True,
        allow_sagemaker=True,
        sagemaker_port=clouds[0],
        allow_vertex_ai=True,
        vertex_ai_port=clouds[1],
        vertex_ai_default_model="Double",
        **certificates.server_files,
        **{
            name: value(certificates) if callable(value) else value
            for name, value in settings.items()
        },
    )
    with Triton(config=config) as triton:
        for name, function, decoupled in (("Double", double, False), ("Stream", countdown, True)):
            triton.bind(
                name,
                function,
                [Tensor(name="x", dtype=np.float32, shape=(-1,))],
                [Tensor(name="y", dtype=np.float32, shape=(-1,))],
                config=ModelConfig(max_batch_size=8, decoupled=decoupled, batching=not decoupled),
            )
        triton.run()
        numbers = {name.removesuffix("_port"): port for name, port in ports.items()}
        numbers |= {"sagemaker": clouds[0], "vertex_ai": clouds[1], "page": numbers["metrics"]}
        yield TlsServer(triton, numbers, certificates)


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def front_ends(request):
    return request.param


@pytest.fixture(scope="module")
def module_patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def server(front_ends, tmp_path_factory, module_patch):
    folder = tmp_path_factory.mktemp("tls")
    with tls_server(folder, module_patch, frontend_processes=front_ends) as running:
        yield running


@pytest.fixture(scope="module")
def mutual_server(front_ends, tmp_path_factory, module_patch):
    settings = {"frontend_processes": front_ends, "tls_client_ca": lambda files: files.ca}
    with tls_server(tmp_path_factory.mktemp("tls"), module_patch, **settings) as running:
        yield running


def run(*command, **options) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in command]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=DEADLINE_S,
        check=False,
        **options,
    )


def curl(server, name, *options) -> subprocess.CompletedProcess[str]:
    url = f"https://127.0.0.1:{server.ports[name]}{HEALTH_PATHS[name]}"
    options = ("-sS", "-o", "/dev/null", "-w", "%{http_code}", *options)
    return run("curl", *options, "--cacert", server.certificates.ca, url)


@needs_curl
@pytest.mark.parametrize("name", HEALTH_PATHS)
def test_curl_reaches_every_port_over_tls(server, name):
    answer = curl(server, name, *(("-H", "Accept: text/html") if name == "page" else ()))

    assert answer.stdout == "200", answer.stderr


@needs_curl
@pytest.mark.parametrize("name", HEALTH_PATHS)
def test_request_without_tls_is_refused_at_every_port(server, name):
    url = f"http://127.0.0.1:{server.ports[name]}{HEALTH_PATHS[name]}"
    answer = run("curl", "-sS", url)

    assert answer.stdout == '{"error":"this port is encrypted: use https instead of http"}'


@needs_curl
@pytest.mark.parametrize("version, expected", [("--http1.1", "1.1"), ("--http2", "2")])
@pytest.mark.parametrize("name", HEALTH_PATHS)
def test_version_of_http_is_what_the_client_asks_for(server, name, version, expected):
    answer = curl(server, name, version, "-H", "Accept: text/html", "-w", " %{http_version}")

    assert answer.stdout.split()[-1] == expected, answer.stderr


def test_connections_of_an_address_are_counted_over_tls(tmp_path, monkeypatch, front_ends):
    settings = {"frontend_processes": front_ends, "max_connections_per_address": 2}
    with tls_server(tmp_path, monkeypatch, **settings) as server:

        def is_served() -> bool:
            try:
                return health_status(server) == 200
            except OSError:
                return False

        for _ in range(5):  # who fails or leaves gives its place back
            with socket.create_connection(("127.0.0.1", server.ports["http"])) as client:
                client.sendall(b"this is no TLS\r\n\r\n")
                client.recv(1000)
            assert eventually(is_served)
        with (
            contextlib.closing(server.https()) as first,
            contextlib.closing(server.https()) as more,
        ):
            # Those who have just left may have their places for a moment.
            assert eventually(lambda: _connects(first))
            assert eventually(lambda: _connects(more))
            assert not is_served()
        assert eventually(is_served)


def _connects(connection) -> bool:
    try:
        connection.connect()
    except OSError:
        return False
    return True


@needs_openssl
@pytest.mark.parametrize(
    "minimum, version, is_accepted",
    [
        ("1.2", "-tls1_1", False),
        ("1.2", "-tls1_2", True),
        ("1.2", "-tls1_3", True),
        ("1.3", "-tls1_2", False),
        ("1.3", "-tls1_3", True),
    ],
)
def test_versions_below_the_minimum_are_refused(
    server, tmp_path, monkeypatch, front_ends, minimum, version, is_accepted
):
    with contextlib.ExitStack() as stack:
        if minimum != "1.2":
            settings = {"frontend_processes": front_ends, "tls_min_version": minimum}
            server = stack.enter_context(tls_server(tmp_path, monkeypatch, **settings))
        for name in ("http", "grpc", "metrics", "sagemaker", "vertex_ai"):
            place = f"127.0.0.1:{server.ports[name]}"
            # OpenSSL offers old versions only with ciphers that are as old.
            ciphers = ("-cipher", "ALL:@SECLEVEL=0")
            answer = run(
                "openssl", "s_client", "-connect", place, version, *ciphers,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

            assert ("BEGIN CERTIFICATE" in answer.stdout) == is_accepted, answer.stdout


def triton_http_client(server, **files):
    options = {"ca_certs": str(server.certificates.ca), **files}
    return triton_http.InferenceServerClient(server.http, ssl=True, ssl_options=options)


def triton_grpc_client(server, **files):
    roots = str(server.certificates.ca)
    return triton_grpc.InferenceServerClient(
        server.grpc, ssl=True, root_certificates=roots, **files
    )


def infer(library, client, values=ONES):
    tensor = library.InferInput("x", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer("Double", [tensor]).as_numpy("y")


@pytest.mark.parametrize("size", [2, 1 << 20], ids=["small", "large"])
@pytest.mark.parametrize(
    "library, make", [(triton_http, triton_http_client), (triton_grpc, triton_grpc_client)]
)
def test_official_clients_infer_over_tls(server, library, make, size):
    values = np.arange(8 * size, dtype=np.float32).reshape(8, size)
    with make(server) as client:
        assert np.array_equal(infer(library, client, values), 2 * values)


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_own_clients_infer_over_tls(server, scheme):
    url = f"{scheme}://{server.grpc if scheme == 'grpcs' else server.http}"
    tls = Tls(ca_file=str(server.certificates.ca))

    async def ask():
        async with AsyncioModelClient(url, "Double", tls=tls) as client:
            return await client.infer_batch(x=ONES)

    with ModelClient(url, "Double", tls=tls) as client:
        assert client.infer_batch(x=ONES)["y"].tolist() == [[2.0, 2.0]]
    with FuturesModelClient(url, "Double", tls=tls) as client:
        assert client.infer_batch(x=ONES).result()["y"].tolist() == [[2.0, 2.0]]
    assert asyncio.run(ask())["y"].tolist() == [[2.0, 2.0]]


def test_stream_arrives_over_tls(server):
    tls = Tls(ca_file=str(server.certificates.ca))
    with DecoupledModelClient(f"grpcs://{server.grpc}", "Stream", tls=tls) as client:
        answers = [answer["y"].tolist() for answer in client.infer_sample(x=ONES[0])]

    assert answers == [[1.0, 1.0]]


def test_own_client_says_that_a_certificate_is_not_trusted(server, tmp_path):
    other = CertificateFolder(tmp_path)
    url = f"https://{server.http}"
    with (
        ModelClient(url, "Double", tls=Tls(ca_file=str(other.ca))) as client,
        pytest.raises(PyTritonClientError, match=rf"certificate of {url} is not trusted"),
    ):
        client.infer_batch(x=ONES)


def test_addresses_say_that_ports_are_encrypted(server):
    ports = server.ports

    assert server.triton.addresses == (
        f"https://127.0.0.1:{ports['http']}",
        f"grpcs://127.0.0.1:{ports['grpc']}",
        f"https://127.0.0.1:{ports['metrics']}",
        f"https://127.0.0.1:{ports['metrics']}/",
    )


def test_landing_document_says_that_ports_are_encrypted(server):
    with contextlib.closing(server.https()) as connection:
        connection.request("GET", "/")
        document = connection.getresponse().read().decode()

    assert f'"grpc":"grpcs://127.0.0.1:{server.ports["grpc"]}"' in document
    assert f'"metrics":"https://127.0.0.1:{server.ports["metrics"]}/metrics"' in document
    assert "http://" not in document


def test_page_of_the_own_origin_may_post(server):
    headers = {"Origin": f"https://{server.http}"}
    body = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
    with contextlib.closing(server.https()) as connection:
        statuses = []
        for origin in (headers["Origin"], "https://elsewhere.example"):
            connection.request("POST", "/v2/models/Double/infer", body, {"Origin": origin})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)

    assert statuses == [200, 403]


def test_remote_triton_joins_an_encrypted_server(server):
    tls = Tls(ca_file=str(server.certificates.ca))
    url = f"https://{server.http}"
    with RemoteTriton(url) as remote:
        remote.bind(
            "Remote",
            double,
            [Tensor(name="x", dtype=np.float32, shape=(-1,))],
            [Tensor(name="y", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=8),
        )
        with ModelClient(url, "Remote", tls=tls) as client:
            assert client.infer_batch(x=ONES)["y"].tolist() == [[2.0, 2.0]]
        assert remote._addresses().http == url
        assert remote._addresses().grpc == f"grpcs://{server.grpc}"


def pytriton(*arguments, **environment):
    return run(sys.executable, "-m", "pytriton", *arguments, env={**os.environ, **environment})


@pytest.mark.parametrize("scheme", ["", "https://", "grpcs://"])
def test_commands_reach_an_encrypted_server(server, scheme):
    place = server.grpc if scheme == "grpcs://" else server.http
    files = ("--ca-file", server.certificates.ca)
    answer = pytriton("infer", "Double", "x=[[1,2]]", "-u", f"{scheme}{place}", *files)

    assert answer.returncode == 0, answer.stderr
    assert "[[2., 4.]]" in answer.stdout


def test_trusted_certificates_of_the_environment_count_for_commands(server):
    files = {"SSL_CERT_FILE": str(server.certificates.ca)}
    for url in (f"https://{server.http}", f"grpcs://{server.grpc}"):
        answer = pytriton("models", "-u", url, **files)

        assert answer.returncode == 0, answer.stderr
        assert "Double" in answer.stdout


def test_link_of_the_page_is_encrypted(server):
    answer = pytriton("page", "-u", server.http)

    assert answer.stdout.startswith(f"https://127.0.0.1:{server.ports['metrics']}/#token=")


# Certificates of clients


def own_files(server):
    certificates = server.certificates
    return {"certificate": certificates.client_cert, "key": certificates.client_key}


def health_status(server, **files) -> int:
    with contextlib.closing(server.https(**files)) as connection:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status


def test_clients_with_a_certificate_are_served(mutual_server):
    certificate, key = map(str, own_files(mutual_server).values())
    http_files = {"certfile": certificate, "keyfile": key}
    tls = Tls(
        ca_file=str(mutual_server.certificates.ca), certificate_file=certificate, key_file=key
    )

    assert health_status(mutual_server, **own_files(mutual_server)) == 200
    with triton_http_client(mutual_server, **http_files) as client:
        assert infer(triton_http, client).tolist() == [[2.0, 2.0]]
    files = {"private_key": key, "certificate_chain": certificate}
    with triton_grpc_client(mutual_server, **files) as client:
        assert infer(triton_grpc, client).tolist() == [[2.0, 2.0]]
    for url in (f"https://{mutual_server.http}", f"grpcs://{mutual_server.grpc}"):
        with ModelClient(url, "Double", tls=tls) as client:
            assert client.infer_batch(x=ONES)["y"].tolist() == [[2.0, 2.0]]


@needs_curl
@pytest.mark.parametrize("name", ["http", "metrics", "sagemaker", "vertex_ai"])
def test_curl_needs_a_certificate_of_the_right_authority(mutual_server, name):
    certificates = mutual_server.certificates
    good = ("--cert", certificates.client_cert, "--key", certificates.client_key)
    foreign = ("--cert", certificates.other_cert, "--key", certificates.other_key)

    assert curl(mutual_server, name, *good).stdout == "200"
    for files in ((), foreign):
        answer = curl(mutual_server, name, *files)
        assert answer.stdout == "000"
        assert answer.returncode != 0


def test_optional_certificates_are_checked_if_they_are_shown(tmp_path, monkeypatch, front_ends):
    settings = {
        "frontend_processes": front_ends,
        "tls_client_ca": lambda files: files.ca,
        "tls_client_auth": "optional",
    }
    with tls_server(tmp_path, monkeypatch, **settings) as server:
        certificates = server.certificates

        assert health_status(server) == 200
        assert health_status(server, **own_files(server)) == 200
        with pytest.raises(OSError, match=r"(?i)tls|ssl|reset|pipe|alert"):
            health_status(server, certificate=certificates.other_cert, key=certificates.other_key)


# New certificates


class Load:
    """Clients in threads that ask without a pause; errors are kept."""

    def __init__(self, server):
        self._server = server
        self._is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.counts = dict.fromkeys(("kept http", "new http", "kept grpc", "new grpc"), 0)
        self._threads = [
            threading.Thread(target=self._run, args=(name, ask))
            for name, ask in (
                ("kept http", self._kept_http),
                ("new http", self._new_http),
                ("kept grpc", self._kept_grpc),
                ("new grpc", self._new_grpc),
            )
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def await_progress(self):
        """Wait until each client has asked some more."""
        before = dict(self.counts)
        assert eventually(
            lambda: self.errors or all(self.counts[name] > n + 3 for name, n in before.items())
        )

    def _run(self, name, ask):
        try:
            for _ in ask():
                self.counts[name] += 1
                if self._is_over.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.errors.append(error)

    def _kept_http(self):
        with triton_http_client(self._server) as client:
            while True:
                yield infer(triton_http, client)

    def _kept_grpc(self):
        with triton_grpc_client(self._server) as client:
            while True:
                yield infer(triton_grpc, client)

    def _new_http(self):
        while True:
            assert health_status(self._server) == 200
            yield

    def _new_grpc(self):
        roots = self._server.certificates.ca.read_bytes()
        while True:
            options = [("grpc.use_local_subchannel_pool", 1)]  # otherwise connections are shared
            credentials = grpc.ssl_channel_credentials(roots)
            with grpc.secure_channel(self._server.grpc, credentials, options) as channel:
                channel.unary_unary(f"{SERVICE}/ServerLive")(b"", timeout=DEADLINE_S)
                yield


def test_certificates_are_replaced_under_load_without_an_error(tmp_path, monkeypatch, front_ends):
    with (
        tls_server(tmp_path, monkeypatch, frontend_processes=front_ends) as server,
        Load(server) as load,
    ):
        load.await_progress()
        for change in (server.certificates.replace, server.certificates.overwrite):
            issued = change()

            assert eventually(lambda issued=issued: load.errors or server.shows(issued))
            load.await_progress()
        metrics = server.metrics()

    assert load.errors == []
    assert "pytriton_tls_reloads_total 2\n" in metrics
    assert "pytriton_tls_reload_failures_total 0\n" in metrics


def failed_handshakes(metrics: str) -> dict[str, int]:
    start = 'pytriton_tls_handshake_failures_total{reason="'
    lines = [line.removeprefix(start) for line in metrics.splitlines() if line.startswith(start)]
    return {line.partition('"')[0]: int(line.rpartition(" ")[2]) for line in lines}


def test_failed_handshakes_are_counted_on_all_ports(tmp_path, monkeypatch, front_ends):
    distrustful = ssl.create_default_context()  # it does not know the authority
    with tls_server(tmp_path, monkeypatch, frontend_processes=front_ends) as server:
        ports = [server.ports[name] for name in ("http", "grpc", "metrics")]
        before = failed_handshakes(server.metrics())
        for port in ports:
            with (
                socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
                pytest.raises(ssl.SSLCertVerificationError),
            ):
                distrustful.wrap_socket(client, server_hostname="localhost")
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                client.recv(1)
        expected = {"protocol": 3, "certificate": 3, "timeout": 0, "other": 0}

        assert before == dict.fromkeys(expected, 0)
        assert eventually(lambda: failed_handshakes(server.metrics()) == expected)
