# SPDX-License-Identifier: Apache-2.0
"""In mode poll the server follows the repository: models that come, change, break and go."""

from __future__ import annotations

import shutil

import pytest

from tests.e2e.http_client import InferFailedError
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, model


def numbered(number):
    return model(code(f"y = x * 0 + {number}"))


@pytest.fixture(scope="module")
def server(start_module_server):
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    return start_module_server({"first": numbered(1)}, flags=flags).await_ready()


def answers(server, name, value):
    try:
        return server.infer(name) == [value]
    except InferFailedError:
        return False


def test_repository_is_followed(server):
    """One story: each look takes a second, so what can be done at once is."""
    server.write("added", numbered(2))
    server.write("broken", model("raise RuntimeError('not yet')"))
    server.write("hanging", model(code(initialize="threading.Event().wait()")))
    server.write("first", numbered(3))

    assert eventually(lambda: answers(server, "added", 2.0))
    assert eventually(lambda: answers(server, "first", 3.0))
    assert eventually(lambda: "not yet" in server.index()["broken"].get("reason", ""))
    shutil.rmtree(server.repository / "added")
    server.write("broken", numbered(4))
    server.write("hanging", numbered(5))
    assert eventually(lambda: answers(server, "broken", 4.0))
    assert eventually(lambda: answers(server, "hanging", 5.0))
    assert eventually(lambda: not server.serves("added"))
    assert answers(server, "first", 3.0)
    assert eventually(lambda: len(server.workers()) == 3)
    assert eventually(lambda: server.get("/v2/health/ready").status == 200)
