# SPDX-License-Identifier: Apache-2.0
"""What the page's server side answers, with front ends in one process and in two."""

from __future__ import annotations

import json
import sys
from urllib.parse import quote

import jsonschema
import numpy as np
import psutil
import pytest
from openapi_spec_validator import validate

from pytriton.client.kserve.address import parse_address
from pytriton.model_config import Tensor
from pytriton.tools.commands.own_server import ask_own_server, own_headers, own_metrics_address
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.page.conftest import HEADERS, ODD_NAME

INFER = "/page/api/v2/models/double/infer"


def body(*values: float) -> bytes:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def server(start_page, request):
    restricted = "--http-restricted-api=statistics:triton-access-token=another"
    return start_page(f"--frontend-processes={request.param}", restricted)


@pytest.fixture
def ask(server):
    def ask(path, *arguments, **more):
        return call(server.metrics_port, path, *arguments, **more)

    return ask


def test_page_comes_with_headers_that_protect_it(ask):
    answer = ask("/")

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert b"<title>pytriton</title>" in answer.body


def test_file_that_a_browser_has_is_not_sent_again(ask):
    first = ask("/page/app.js")
    again = ask("/page/app.js", headers={"If-None-Match": first.headers["etag"]})
    packed = ask("/page/app.js", headers={"Accept-Encoding": "gzip, deflate, br"})

    assert (again.status, again.body) == (304, b"")
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(first.body) / 2


def test_head_and_other_methods_and_paths(ask):
    assert (ask("/", method="HEAD").status, ask("/", method="HEAD").body) == (200, b"")
    assert [ask("/", b"x").status, ask("/page/api/models", method="OPTIONS").status] == [405, 405]
    assert ask("/", b"x").headers["allow"] == "GET, HEAD"
    assert ask("/page/api/nothing").status == 404
    assert ask("/page/../api.py").status == 404
    assert ask("/metrics").body.startswith(b"# HELP nv_inference_request_success")
    assert (ask("/other").status, ask("/other").body) == (200, b"")


def test_token_of_the_page_opens_what_an_access_token_opens(ask):
    path = "/page/api/v2/models/double/stats"
    another = {"triton-access-token": "another"}

    assert [ask(path).status, ask(path, headers=HEADERS).status] == [403, 200]
    assert ask(path, headers=another).status == 200
    assert ask(INFER, body(1), another).status == 403


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are texts there")
def test_directory_whose_name_is_no_text_hides_no_model(ask, server):
    before = ask("/page/api/models").json["models"]
    folder = server.repository / "bad\udcff"  # a byte that is not UTF-8
    folder.mkdir()
    try:
        models = ask("/page/api/models").json["models"]
    finally:
        folder.rmdir()

    assert [each["name"] for each in models] == [each["name"] for each in before]


def test_list_of_models_has_states_and_tensors(ask):
    models = {model["name"]: model for model in ask("/page/api/models").json["models"]}

    assert models["double"]["state"] == "READY"
    assert models["double"]["inputs"] == [
        {"name": "X", "datatype": "FP32", "shape": [-1, -1], "optional": False}
    ]
    assert models["words"]["decoupled"]
    assert models["spare"] == {"name": "spare", "version": "", "state": "", "reason": ""}
    assert ODD_NAME in models


def test_samples_follow_requests(ask, server):
    def counted() -> int:
        models = ask("/page/api/now").json["now"]["models"]
        return next(each["ok"] for each in models if each["name"] == "double")

    def recorded() -> list[list[float]]:
        answer = ask("/page/api/samples").json
        number = next((each[0] for each in answer["models"] if each[2] == "double"), None)
        records = [record for sample in answer["fine"] for record in sample[3]]
        return [record for record in records if record[0] == number]

    before = counted()
    assert call(server.http_port, "/v2/models/double/infer", body(1)).status == 200
    assert eventually(lambda: counted() > before)
    assert eventually(recorded)
    last = ask("/page/api/samples").json["last"]
    assert ask(f"/page/api/samples?after={last + 100}").json["fine"]
    assert ask("/page/api/samples?after=x").status == 200


def test_samples_are_taken_while_nobody_looks(ask):
    first = ask("/page/api/samples").json["last"]
    assert eventually(lambda: ask(f"/page/api/samples?after={first}").json["fine"])

    answer = ask(f"/page/api/samples?after={first}").json
    time, seconds, memory, _, _ = answer["fine"][0]
    assert abs(answer["now"]["time"] - time) < 60
    assert 0 < seconds < 60
    assert memory is None or memory > 1 << 20


def test_form_needs_the_token_and_no_other(ask):
    assert ask(INFER, body(1, 2)).status == 403
    assert ask(INFER, body(1, 2), {"triton-access-token": "wrong"}).status == 403
    assert ask(INFER, body(1, 2), {"Cookie": "triton-access-token=page-secret"}).status == 403
    answer = ask(INFER, body(1, 2), HEADERS)

    assert answer.status == 200
    assert answer.json["outputs"][0]["data"] == [2, 4]


def test_errors_of_a_model_reach_the_form(ask):
    answer = ask(INFER, body(-1), HEADERS)

    assert (answer.status, answer.error) == (500, "no negative numbers")


def test_stream_reaches_the_form(ask):
    tensor = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["w"]}
    request = json.dumps({"inputs": [tensor]}).encode()
    headers = {**HEADERS, "Accept": "text/event-stream"}
    answer = ask("/page/api/v2/models/words/infer", request, headers)

    events = [json.loads(line[5:]) for line in answer.body.splitlines() if line]
    words = [event["outputs"][0]["data"][0] for event in events]
    assert "".join(words) == "You asked: w This answer comes word by word. "


def test_server_tells_its_addresses_and_whether_the_token_is_right(ask, server):
    document = ask("/page/api/server").json

    address = {"scheme": "http", "address": "127.0.0.1", "port": server.http_port}
    assert document["addresses"]["http"] == address
    assert (document["is_allowed"], document["can_load"]) == (False, True)
    assert ask("/page/api/server", headers=HEADERS).json["is_allowed"]


def test_openapi_document_is_valid_and_true(ask, server):
    document = ask("/openapi.json").json

    validate(document)
    assert document["servers"] == [{"url": f"http://127.0.0.1:{server.http_port}"}]
    for path, operations in document["paths"].items():
        if "get" in operations:
            answer = call(server.http_port, path.replace("{model}", "double"))
            assert str(answer.status) in operations["get"]["responses"], path
    operation = document["paths"]["/v2/models/double/infer"]["post"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    answer = call(server.http_port, "/v2/models/double/infer", body(1, 2))
    jsonschema.validate(answer.json, {**schema, "components": document["components"]})


def test_configuration_and_names_with_odd_characters(ask):
    assert ask("/page/api/v2/models/double/config").json["name"] == "double"
    assert ask(f"/page/api/v2/models/{quote(ODD_NAME)}/config").status == 404


def test_start_says_where_the_page_is(server):
    assert (
        f"The page is at http://127.0.0.1:{server.metrics_port}/ ('pytriton page -u localhost:"
        f"{server.http_port}' adds its token)"
    ) in server.stdout
    assert "page-secret" not in server.output


@pytest.fixture(scope="module")
def restricted(start_server):
    """No token of the page, and APIs with a key."""
    flags = ["--http-restricted-api=metadata,model-repository,inference,logging:key=k"]
    return start_server({}, flags=flags).await_ports()


def test_restrictions_of_http_hold_on_the_page(restricted):
    key, port = {"key": "k"}, restricted.metrics_port

    assert call(port, "/page/api/models").status == 403
    assert call(port, "/openapi.json").status == 403
    assert call(port, "/page/api/models", headers=key).json == {"models": []}
    assert call(port, "/openapi.json", headers=key).status == 200
    assert call(port, "/page/api/server").json["other_headers"] == ["key"]


@pytest.mark.parametrize("token", ["", "guessed"])
def test_server_without_a_token_of_its_own_says_how_its_user_gets_one(restricted, token):
    headers = {"key": "k", "triton-access-token": token}
    answer = call(restricted.metrics_port, "/page/api/log", headers=headers)

    assert answer.status == 403
    assert "'pytriton page' prints a link with it" in answer.error


def test_user_of_a_server_without_a_token_finds_a_random_one(restricted):
    address = parse_address(f"127.0.0.1:{restricted.http_port}")
    access = ask_own_server(address)
    page = own_metrics_address(access, address)
    headers = own_headers(access, page)

    assert headers == {"key": "k", "triton-access-token": access.page_token}
    assert len(access.page_token) > 40
    assert access.page_token not in restricted.output
    assert call(page.port, "/page/api/log", headers=headers).status == 200


def test_page_that_is_off_leaves_the_metrics_port_as_it_was(start_server):
    server = start_server({}, flags=["--allow-page=false", "--page-token=hush"]).await_ports()
    port = server.metrics_port

    for path in ("/", "/page/app.js", "/openapi.json"):
        assert (call(port, path).status, call(port, path).body) == (200, b"")
    assert call(port, "/page/api/log", b"x").status == 405
    for process in (psutil.Process(server.pid), *server.descendants()):
        assert "hush" not in " ".join(process.cmdline())


def test_bound_server_shows_its_models_without_a_token_and_takes_its_access_token():
    def negate(requests):
        return [{"y": -request["x"]} for request in requests]

    http, grpc, metrics = free_ports(3)
    config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics)
    security = TritonSecurityConfig(access_token="mine")
    x, y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")
    with Triton(config=config, security_config=security) as triton:
        triton.bind("negate", negate, [x], [y])
        triton.run()
        (model,) = call(metrics, "/page/api/models").json["models"]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [3]}
        request = json.dumps({"inputs": [tensor]}).encode()
        path = "/page/api/v2/models/negate/infer"
        refused = call(metrics, path, request)
        answer = call(metrics, path, request, {"triton-access-token": "mine"})
        statistics = call(metrics, "/page/api/v2/models/negate/stats")

    assert (model["name"], model["state"], model["is_bound"]) == ("negate", "READY", True)
    assert (refused.status, statistics.status) == (403, 403)
    assert answer.json["outputs"][0]["data"] == [-3]
