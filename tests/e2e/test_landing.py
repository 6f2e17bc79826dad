# SPDX-License-Identifier: Apache-2.0
"""The documents at the HTTP port of a real server, and the answers that its page shows."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pytest
from openapi_spec_validator import validate

from pytriton.client import ModelClient
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.conftest import new_ports
from tests.e2e.http_client import call
from tests.free_ports import free_ports

HTML = {"Accept": "text/html"}
TOKEN = "sesame"


def greet(name: str, excited: bool = False) -> str:
    """Greet a person.

    Args:
        name: Whom to greet.
        excited: How.

    Returns:
        The greeting.
    """
    return f"Hello {name}{'!' if excited else '.'}"


def count(word: str, times: int = 3) -> Iterator[str]:
    """Say a word again and again."""
    for _ in range(times):
        yield word


def start(processes: int, restricted=()):
    ports = new_ports()
    security = TritonSecurityConfig(access_token=TOKEN, restricted_endpoints=list(restricted))
    config = TritonConfig(**ports, frontend_processes=processes)
    triton = Triton(config=config, security_config=security)
    triton.bind(greet)
    triton.bind(count)
    triton.run()
    return triton, ports


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def ports(request):
    triton, ports = start(request.param)
    yield ports
    triton.stop()


def test_addresses_are_those_of_the_server(ports):
    answer = call(ports["http_port"], "/")

    assert answer.json == {
        "name": "triton",
        "version": "2.73.0",
        "http": f"http://127.0.0.1:{ports['http_port']}",
        "grpc": f"grpc://127.0.0.1:{ports['grpc_port']}",
        "metrics": f"http://127.0.0.1:{ports['metrics_port']}/metrics",
        "page": f"http://127.0.0.1:{ports['metrics_port']}/",
        "docs": f"http://127.0.0.1:{ports['http_port']}/docs",
        "openapi": f"http://127.0.0.1:{ports['http_port']}/openapi.json",
    }


def test_models_have_their_docstrings(ports):
    document = call(ports["http_port"], "/landing/models").json

    by_name = {model["name"]: model for model in document["models"]}
    assert by_name["greet"]["description"] == "Greet a person."
    assert by_name["greet"]["result"] == "The greeting."
    assert by_name["greet"]["inputs"][0] == {
        "name": "name",
        "datatype": "BYTES",
        "shape": [1],
        "dims": [1],
        "optional": False,
        "words": "a text",
        "description": "Whom to greet.",
    }
    assert by_name["greet"]["examples"] == {"excited": False}
    assert by_name["count"]["decoupled"] is True


def test_openapi_document_has_the_functions_parameters(ports):
    document = call(ports["http_port"], "/openapi.json").json

    validate(document)
    body = document["paths"]["/v2/models/greet/generate"]["post"]["requestBody"]
    members = body["content"]["application/json"]["schema"]["properties"]
    assert members["name"] == {"type": "string", "description": "Whom to greet."}
    assert document["tags"][1] == {"name": "greet", "description": "Greet a person."}


def test_browser_gets_the_page_and_its_files(ports):
    answer = call(ports["http_port"], "/", headers=HTML)

    assert answer.headers["content-type"].startswith("text/html")
    for name in ("landing.js", "landing.css", "page.css", "dom.js", "examples.js", "icon.svg"):
        assert call(ports["http_port"], f"/landing/{name}").status == 200, name


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_client_is_told_what_is_wrong_in_words(ports, scheme):
    url = f"{scheme}://127.0.0.1:{ports[f'{scheme}_port']}"
    with (
        ModelClient(url, "greet") as client,
        pytest.raises(Exception, match="expected true or false, got whole numbers") as refusal,
    ):
        client.infer_sample(name=np.array([b"Ada"]), excited=np.array([1]))

    assert "input 'excited' of model 'greet'" in str(refusal.value)


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "landing_page.md"
ROWS = re.findall(r"^\| `(\{.*?\})`( to `infer`)? \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def port():
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    functions = {}
    exec(compile(code, str(PAGE), "exec"), functions)
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    triton = Triton(config=TritonConfig(**ports))
    triton.bind(functions["greet"])
    triton.run()
    yield ports["http_port"]
    triton.stop()


def test_page_shows_answers():
    assert len(ROWS) == 5


@pytest.mark.parametrize("body, is_infer, message", ROWS)
def test_answer_is_as_the_page_shows_it(port, body, is_infer, message):
    action = "infer" if is_infer else "generate"
    answer = call(port, f"/v2/models/greet/{action}", body.encode())

    assert answer.status == 400
    assert answer.json == {"error": message}
