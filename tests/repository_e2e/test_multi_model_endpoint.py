# SPDX-License-Identifier: Apache-2.0
"""A server as SageMaker uses it for an endpoint with many models."""

from __future__ import annotations

import json
import pathlib
import socket
import threading

import pytest

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import HELD, HOLD, code, config, model, write_model

BODY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
PLUS = {"config.pbtxt": 'name: "own_name"\n' + config(), "1/model.py": code("y = x + 1")}


class Endpoint:
    """The server, and the folders into which SageMaker would write archives."""

    def __init__(self, server, port, folder):
        self.server = server
        self.port = port
        self._folder = folder

    def write(self, archive, **models):
        for name, files in models.items():
            write_model(self._folder / archive / "model" / name, files)
        return self.url(archive)

    def url(self, archive):
        return str(self._folder / archive / "model")

    def load(self, name, url):
        body = json.dumps({"model_name": name, "url": url}).encode()
        return call(self.port, "/models", body)

    def unload(self, name):
        return call(self.port, f"/models/{name}", method="DELETE")

    def invoke(self, name, headers=None):
        return call(self.port, f"/models/{name}/invoke", BODY, headers)

    def outputs(self, name):
        answer = self.invoke(name)
        assert answer.status == 200, answer.body
        return answer.json["outputs"][0]["data"]

    def models(self):
        return [each["modelName"] for each in call(self.port, "/models").json["models"]]


@pytest.fixture(scope="module", params=["one process", "front ends"])
def endpoint(request, start_module_server, tmp_path_factory):
    (port,) = free_ports(1)
    flags = (
        *("--model-control-mode=explicit", "--allow-sagemaker=true", f"--sagemaker-port={port}"),
        "--load-model=here",
    )
    processes = "2" if request.param == "front ends" else "0"
    server = start_module_server(
        {"here": model(code())},
        flags=flags,
        environment={"PYTRITON_FRONTEND_PROCESSES": processes},
    )
    return Endpoint(server.await_ready(), port, tmp_path_factory.mktemp("archives"))


def test_unloading_waits_for_requests_in_flight(endpoint):
    begin = "open(os.path.join(os.path.dirname(__file__), 'begun'), 'w').close()"
    held = {**model(code(f"{begin}\n{HOLD}\ny = x")), **HELD}
    url = endpoint.write("held", held=held)
    assert endpoint.load("held", url).status == 200
    version = pathlib.Path(url, "held", "1")
    head = b"POST /models/held/invoke HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    statuses = []
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        client.sendall(head % len(BODY) + BODY)
        assert eventually((version / "begun").exists)
        unloading = threading.Thread(target=lambda: statuses.append(endpoint.unload("held").status))
        unloading.start()
        assert eventually(lambda: not endpoint.server.serves("held"))
        assert statuses == []
        (version / "hold").unlink()
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
    unloading.join()

    assert statuses == [200]


def test_many_models_come_and_go_at_the_same_time(endpoint):
    urls = {f"m{i}": endpoint.write(f"m{i}", plus=PLUS) for i in range(6)}
    statuses: dict[str, list[int]] = {name: [] for name in urls}

    def live(name):
        for _ in range(2):
            statuses[name] += [
                endpoint.load(name, urls[name]).status,
                endpoint.invoke(name).status,
                endpoint.unload(name).status,
            ]

    threads = [threading.Thread(target=live, args=(name,)) for name in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert statuses == {name: [200] * 6 for name in urls}
    assert endpoint.models() == []
    assert endpoint.server.index().keys() == {"here"}
    assert eventually(lambda: len(endpoint.server.workers()) == 1)
