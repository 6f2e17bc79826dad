# SPDX-License-Identifier: Apache-2.0
"""In mode explicit clients load and unload, over HTTP and gRPC, also what they send along."""

from __future__ import annotations

import base64
import json

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, model

pytestmark = pytest.mark.both_front_end_modes

PROTOCOLS = ["http", "grpc"]
OVERRIDE = {
    "backend": "python",
    "max_batch_size": 2,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": ["-1"]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": ["-1"]}],
    "instance_group": [{"kind": "KIND_CPU", "count": 3}],
}


@pytest.fixture(scope="module")
def server(start_module_server):
    repository = {
        "at_start": model(),
        "later": model(code("y = x + 1")),
        "never": model(),
    }
    flags = ["--model-control-mode=explicit", "--load-model=at_start"]
    return start_module_server(repository, flags=flags).await_ready()


class Control:
    """One of the official clients."""

    def __init__(self, client, *, is_http):
        self.client = client
        self.is_http = is_http

    def index(self):
        index = self.client.get_model_repository_index()
        if not self.is_http:
            return {row.name: (row.version, row.state, row.reason) for row in index.models}
        return {
            row["name"]: tuple(row.get(key, "") for key in ("version", "state", "reason"))
            for row in index
        }

    def config(self, name):
        config = self.client.get_model_config(name)
        return (
            config if self.is_http else self.client.get_model_config(name, as_json=True)["config"]
        )


@pytest.fixture(params=PROTOCOLS)
def control(request, server):
    is_http = request.param == "http"
    with server.http_client() if is_http else server.grpc_client() as client:
        made = Control(client, is_http=is_http)
        yield made
        client.unload_model("later")


def test_only_what_was_named_is_loaded_at_start(control):
    index = control.index()

    assert index["at_start"] == ("1", "READY", "")
    assert index["never"] == ("", "", "")


def test_model_is_loaded_and_unloaded(server, control):
    control.client.load_model("later")
    loaded = control.index()["later"]
    answer = server.infer("later", 1.0)
    control.client.unload_model("later")

    assert loaded == ("1", "READY", "")
    assert answer == [2.0]
    assert eventually(lambda: control.index()["later"] == ("1", "UNAVAILABLE", "unloaded"))
    assert not control.client.is_model_ready("later")
    assert control.client.is_server_ready()


def test_config_may_be_sent_along(server, control):
    control.client.load_model("later", config=json.dumps(OVERRIDE))

    settings = control.config("later")
    assert settings["max_batch_size"] == 2
    titles = " ".join(server.worker_titles())
    assert "later_0_2" in titles
    assert server.infer("later", 1.0) == [2.0]


def test_files_may_be_sent_along(server, control):
    files = {"file:7/model.py": code("y = x * 10").encode()}

    control.client.load_model("later", config=json.dumps(OVERRIDE), files=files)

    assert control.index()["later"] == ("7", "READY", "")
    assert server.infer("later", 2.0) == [20.0]
    control.client.load_model("later")  # the repository's own again
    assert server.infer("later", 2.0) == [3.0]


def test_unknown_model_of_which_files_are_sent_is_loaded(server, control):
    files = {"file:1/model.py": code("y = x * 3").encode()}

    control.client.load_model("sent", config=json.dumps(OVERRIDE), files=files)

    assert server.infer("sent", 2.0) == [6.0]
    control.client.unload_model("sent", unload_dependents=True)
    assert eventually(lambda: not server.serves("sent"))


@pytest.mark.parametrize(
    "name, options, text",
    [
        ("missing", {}, "failed to load 'missing', failed to poll from model repository"),
        ("later", {"files": {"file:1/model.py": b""}}, "'config' must be specified"),
        (
            "later",
            {"config": json.dumps(OVERRIDE), "files": {"file:../model.py": b""}},
            "must stay within model directory",
        ),
        ("later", {"config": "{"}, "Invalid config override"),
        ("later", {"config": '{"colour": "blue"}'}, "colour"),
        ("..", {}, "path traversal"),
    ],
)
def test_bad_load_is_refused(control, name, options, text):
    with pytest.raises(InferenceServerException) as refused:
        control.client.load_model(name, **options)

    assert text in refused.value.message()


FILE = base64.b64encode(code().encode()).decode()
MANY = {**OVERRIDE, "instance_group": [{"kind": "KIND_CPU", "count": 600}] * 2}
LONG = "x" * 300


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_load_of_what_cannot_be_is_refused_and_leaves_nothing(start_server, tmp_path, front_ends):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "PYTRITON_FRONTEND_PROCESSES": front_ends}
    flags = ["--model-control-mode=explicit"]
    server = start_server({}, flags=flags, environment=environment).await_ready()
    files = {"config": json.dumps(OVERRIDE), "file:1/model.py": FILE}
    not_utf8 = "expected UTF-8 text for 'model name', got '\\udcff\\udcfe'"
    not_written = "got one that cannot be written"
    for name, parameters, status, expected in (
        ("%ff%fe", files, 400, not_utf8),
        ("%ff%fe", {}, 400, not_utf8),
        ("sent", {**files, f"file:1/{LONG}": FILE}, 500, f"{not_written}: File name too long"),
        ("sent", {**files, "file:1": FILE}, 500, f"'file:1', {not_written}: Is a directory"),
        ("sent", {**files, "config": json.dumps(MANY)}, 400, "expected at most 1024 instances"),
    ):
        answer = server.load(name, **parameters)

        assert answer.status == status
        assert expected in answer.error
        assert str(temporary) not in answer.error
        assert list(temporary.iterdir()) == []
    assert (
        server.unload("%ff%fe").error
        == "expected UTF-8 text for 'model name', got '\\udcff\\udcfe'"
    )
    assert "Traceback" not in server.output
