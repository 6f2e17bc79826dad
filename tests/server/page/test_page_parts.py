# SPDX-License-Identifier: Apache-2.0
"""The decisions of the page, without a server: paths, rights, samples."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytriton.base.dtypes import BOOL, BYTES, FP16, INT64, encode_bytes
from pytriton.base.errors import InternalError, InvalidArgumentError, NotFoundError
from pytriton.base.messages import InferTensor
from pytriton.base.nvml import DeviceReading
from pytriton.runtime.transport.control import Started
from pytriton.serving.engine.failures import FailureBook
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.http.request import RequestHead
from pytriton.serving.server.metrics.api import MetricsApi
from pytriton.serving.server.options.server_options import PageOptions, ServerOptions
from pytriton.serving.server.page import api, routes
from pytriton.serving.server.page.api import REFUSAL, PageAccess, PageApi, static_files
from pytriton.serving.server.page.documents import (
    MAX_VALUES,
    CurrentNumbers,
    change_keeping,
    failures_document,
    inputs_document,
)
from pytriton.serving.server.page.history import History
from pytriton.serving.server.server import LazyPage
from pytriton.testing import FakeClock
from tests.fakes import inference
from tests.server.http_fakes import Client
from tests.server.http_models import Service

TOKEN = {b"triton-access-token": b"secret"}


@pytest.mark.parametrize(
    "path", [b"/", b"/openapi.json", b"/page/app.js", b"/page/api/x", b"/page/"]
)
def test_page_owns_its_paths(path):
    assert routes.owns(path)


@pytest.mark.parametrize("path", [b"/metrics", b"/page", b"/pages/", b"/index.html", b"//", b"/v2"])
def test_page_leaves_other_paths_alone(path):
    assert not routes.owns(path)


@pytest.mark.parametrize(
    "path, name, needs_token",
    [
        (b"/page/api/v2/models/m/infer", "infer", True),
        (b"/page/api/v2/models/m/versions/3/infer", "infer", True),
        (b"/page/api/v2/models/m/generate", "generate", True),
        (b"/page/api/v2/models/m/generate_stream", "generate_stream", True),
        (b"/page/api/v2/repository/models/m/load", "repository_load", True),
        (b"/page/api/v2/repository/models/m/unload", "repository_unload", True),
        (b"/page/api/v2/models/m/config", "model_config", False),
        (b"/page/api/v2/models/m/stats", "model_statistics", False),
        (b"/page/api/v2/models/m", "model_metadata", False),
        (b"/page/api/log", "log", True),
        (b"/page/api/settings", "settings", True),
        (b"/page/api/now", "now", False),
        (b"/page/api/samples", "samples", False),
        (b"/page/api/failures", "failures", False),
        (b"/page/api/failures/inputs", "failed_inputs", True),
    ],
)
def test_actions_and_the_log_need_the_token(path, name, needs_token):
    route = routes.find(path)

    assert route is not None
    assert (route.name, route.needs_token) == (name, needs_token)


@pytest.mark.parametrize(
    "path",
    [
        b"/page/api/v2/logging",
        b"/page/api/v2/trace/setting",
        b"/page/api/v2/systemsharedmemory/status",
        b"/page/api/v2/models/stats/x/y",
        b"/page/api/v2/models//infer",
        b"/page/api/v2/../v2/logging",
    ],
)
def test_other_endpoints_of_http_are_not_reached(path):
    assert routes.find(path) is None


def test_only_files_of_the_page_are_files():
    for path in (b"/page/../api.py", b"/page/static_files.py", b"/page/%2e%2e/api.py", b"/page/"):
        route = routes.find(path)
        assert route is not None
        assert route.name not in static_files()
    assert {"index.html", "app.js", "page.css", "icon.svg"} <= static_files().keys()


def test_page_is_small_and_has_nothing_from_outside():
    files = static_files()

    assert sum(len(file.packed) for file in files.values()) < 40_000
    for name, file in files.items():
        text = file.content.decode().replace("http://www.w3.org/", "")
        assert "innerHTML" not in text, name
        assert "https://" not in text, name
        assert " style=" not in text, name
    assert b"onclick" not in files["index.html"].content


def test_token_is_needed_beside_that_of_the_api():
    group = RestrictedGroup(apis=("inference",), header="key", value="k")
    access = PageAccess([group], "secret")

    def ask(**headers: bytes) -> str | None:
        given = {name.encode().replace(b"_", b"-"): value for name, value in headers.items()}
        return access.refusal("inference", given.get, needs_token=True)

    assert ask(key=b"k") == REFUSAL
    assert ask(triton_access_token=b"secret") == "This API is restricted, expecting header 'key'"
    assert ask(triton_access_token=b"wrong", key=b"k") is not None
    assert ask(triton_access_token=b"secret", key=b"k") is None
    assert access.other_headers == ["key"]


def test_page_without_a_token_is_refused_as_an_empty_header_would_open_it():
    with pytest.raises(ValueError, match="expected a token"):
        PageAccess([], "")


def test_access_token_of_all_apis_is_enough():
    group = RestrictedGroup(apis=("logging",), header="Triton-Access-Token", value="secret")
    access = PageAccess([group], "secret")

    assert access.refusal("logging", TOKEN.get, needs_token=True) is None
    assert access.other_headers == []


def test_token_of_the_page_may_differ_from_the_access_token():
    groups = [
        RestrictedGroup(apis=("statistics",), header="triton-access-token", value="other"),
        RestrictedGroup(apis=("logging",), header="key", value="k"),
    ]
    access = PageAccess(groups, "secret")
    other = {b"triton-access-token": b"other"}

    assert access.refusal("statistics", TOKEN.get, needs_token=True) is None
    assert access.refusal("statistics", TOKEN.get) is None
    assert access.refusal("statistics", other.get) is None
    assert access.refusal("statistics", other.get, needs_token=True) is not None
    assert access.refusal("logging", TOKEN.get, needs_token=True) is not None


def page_of_nothing(loop: Any) -> PageApi:
    """A page whose server has no models."""
    nothing: Any = SimpleNamespace(index=lambda ready: [])
    options, ports = ServerOptions(page=PageOptions(token="secret")), Started(0, 0, 0)
    return PageApi(
        *(nothing, nothing, nothing, options, loop, _no_machine, lambda: None, History(0.0)),
        *(ports, 0.0),
    )


@pytest.mark.parametrize("token", [b"", b"wrong", b"secret"])
@pytest.mark.parametrize(
    "method,path,status",
    [
        (b"POST", b"/metrics", 400),
        (b"POST", b"/page/nothing", 404),
        (b"POST", b"/page/app.js", 405),
        (b"GET", b"/page/app.js", 400),
        (b"POST", b"/page/api/failures/inputs", 400),
        (b"POST", b"/page/api/v2/repository/models/m/unload", 400),
        (b"PUT", b"/page/api/v2/models/m/infer", 405),
        (b"POST", b"/page/api/v2/models/m/infer", None),
        (b"POST", b"/page/api/v2/repository/models/m/load", None),
    ],
)
def test_only_allowed_requests_of_the_form_have_large_bodies(method, path, status, token):
    service = Service()
    metrics = MetricsApi(service.engine, service.options, service.loop)
    metrics.other_paths = LazyPage(lambda: page_of_nothing(service.loop))
    head = RequestHead(method, path, {b"triton-access-token": token} if token else {})
    client: Any = Client(metrics).connection
    refusal = metrics.large_body_refusal(head, client)
    route = routes.find(path) if routes.owns(path) else None
    is_closed = route is not None and route.needs_token and method in route.methods

    if is_closed and token != b"secret":
        assert refusal == (403, REFUSAL)
    else:
        assert (refusal and refusal[0]) == status


def test_one_openapi_document_is_made_at_a_time(monkeypatch):
    under_way: list[str] = []
    together: list[int] = []

    def make(_specs, url, _headers):
        under_way.append(url)
        time.sleep(0.01)  # another one could begin now
        together.append(len(under_way))
        under_way.pop()
        return url.encode()

    async def ask() -> list[bytes]:
        page = page_of_nothing(asyncio.get_running_loop())
        request: Any = SimpleNamespace(head=SimpleNamespace(headers={}))
        return await asyncio.gather(*(page._openapi(request) for _ in range(4)))

    monkeypatch.setattr(api, "openapi_text", make)

    assert asyncio.run(ask()) == [b"/"] * 4
    assert together == [1] * 4


def test_messages_and_places_of_failures_need_the_token():
    book = FailureBook()
    book.add_refusal(None, "secret", "id", NotFoundError("no model 'secret'"))

    (shown,) = failures_document(book, has_details=False)["groups"]
    (whole,) = failures_document(book, has_details=True)["groups"]

    assert (shown["kind"], shown["count"], shown["reason"]) == ("Not found", 1, "REFUSED")
    assert "secret" not in json.dumps(shown)
    assert whole["place"] == "no model '…'"
    assert whole["example"]["message"] == "no model 'secret'"
    assert (whole["awaits_inputs"], whole["has_inputs"]) == (False, False)


def test_kept_inputs_are_values_that_json_has():
    book = FailureBook()
    numbers = np.array([1.5, float("nan"), float("-inf")], np.float16)
    large = np.arange(MAX_VALUES + 1, dtype=np.int64)
    tensors = [
        InferTensor("H", FP16, (3,), numbers.tobytes()),
        InferTensor("W", BYTES, (2,), encode_bytes([b"word", b"\xff"])),
        InferTensor("B", BOOL, (1,), b"\x01"),
        InferTensor("L", INT64, (MAX_VALUES + 1,), large.tobytes()),
    ]
    asked = inference(inputs={each.name: each for each in tensors}, id="mine")
    book.add(None, asked, InternalError("no"), "BACKEND")
    number = book.listed()[0].number

    answer = change_keeping(book, b'{"group": %d}' % number)
    book.add(None, asked, InternalError("no"), "BACKEND")
    document = inputs_document(book, number)

    assert answer == {"group": number, "awaits_inputs": True}
    assert document["id"] == "mine"
    data = {each["name"]: each["data"] for each in document["inputs"]}
    assert data["H"] == [1.5, "nan", "-inf"]
    assert data["W"] == ["word", "\\xff"]
    assert data["B"] == [True]
    assert len(data["L"]) == MAX_VALUES
    assert [each["is_cut"] for each in document["inputs"]] == [False, False, False, True]


def test_inputs_that_are_not_kept_are_refused_in_words():
    book = FailureBook()
    book.add_refusal(None, "m", "", NotFoundError("no"))
    number = book.listed()[0].number

    with pytest.raises(NotFoundError, match="has no inputs of a request"):
        inputs_document(book, number)
    with pytest.raises(NotFoundError, match="there is no group 77 of failures"):
        change_keeping(book, b'{"group": 77}')
    with pytest.raises(InvalidArgumentError, match="expected a document such as"):
        change_keeping(book, b"[]")


async def _no_machine():
    return None, ()


def test_numbers_of_now_are_read_when_asked_and_not_too_often():
    service = Service()
    clock = FakeClock()
    current = CurrentNumbers(service.engine, _no_machine, lambda: None, clock=clock)

    async def look() -> list[bytes]:
        texts = [*await asyncio.gather(current.read(), current.read()), await current.read()]
        clock.advance(1)
        return [*texts, await current.read()]

    first, second, third, later = asyncio.run(look())

    assert first is second is third
    assert later is not first
    numbers = json.loads(first)
    (double, stream) = numbers["models"]
    assert (double["name"], stream["name"]) == ("double", "stream")
    assert (double["ok"], double["failed"], double["pending"], double["instances"]) == (0, 0, 0, 1)
    assert set(numbers["machine"]) == {"server_memory", "gpus"}
    assert numbers["machine"]["server_memory"] > 1 << 20
    assert not {"gpu_memory", "to_gpu", "to_host"} & set(double)


def test_numbers_of_now_have_gpu_memory_and_copies_of_models():
    service = Service()
    model = service.engine.find("double")
    model.instances[0].pid = 7
    model.statistics.costs.to_gpu_bytes = 5

    async def read_machine():
        return None, [DeviceReading("a", process_bytes={7: 10}), DeviceReading("b")]

    current = CurrentNumbers(service.engine, read_machine, lambda: None)
    double, _ = json.loads(asyncio.run(current.read()))["models"]

    assert (double["gpu_memory"], double["to_gpu"], double["to_host"]) == (10, 5, 0)
