# SPDX-License-Identifier: Apache-2.0
"""The answers to wrong requests that `docs/landing_page.md` shows are those of the server."""

from __future__ import annotations

import pathlib
import re

import pytest

from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import call
from tests.free_ports import free_ports

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
