# SPDX-License-Identifier: Apache-2.0
"""Versions and their policies, several repositories, and the choice of a configuration."""

from __future__ import annotations

import pytest

from tests.e2e.http_client import InferFailedError
from tests.repository_e2e.model_files import code, config, model


def versions(policy, *numbers):
    files = {f"{number}/model.py": code(f"y = x * 0 + {number}") for number in numbers}
    return {"config.pbtxt": config(policy), **files}


@pytest.fixture(scope="module")
def server(start_module_server):
    first = {
        "default": versions("", 1, 3, 20),
        "every": versions("version_policy { all { } }", 1, 3, 20),
        "newest": versions("version_policy { latest { num_versions: 2 } }", 1, 3, 20),
        "chosen": versions("version_policy { specific { versions: [ 1, 20 ] } }", 1, 3, 20),
        "partly": versions("version_policy { specific { versions: [ 1, 9 ] } }", 1),
        "zeros": versions("version_policy { all { } }", 1, "002"),
    }
    second = {"second": model(code("y = x + 2"))}
    return start_module_server(first, second).await_ports()


@pytest.mark.parametrize(
    "name, served",
    [
        ("default", [20]),
        ("every", [1, 3, 20]),
        ("newest", [3, 20]),
        ("chosen", [1, 20]),
        ("partly", [1]),
        ("zeros", [1]),
    ],
)
def test_policy_chooses_versions(server, name, served):
    rows = [row for row in server.post("/v2/repository/index").json if row["name"] == name]

    assert rows == [{"name": name, "version": str(v), "state": "READY"} for v in served]
    metadata = server.get(f"/v2/models/{name}").json
    assert metadata["versions"] == [str(version) for version in served]
    assert [server.infer(name, version=str(version)) for version in served] == [[v] for v in served]
    assert server.infer(name) == [served[-1]]


def test_version_that_is_not_served_is_not_found(server):
    with pytest.raises(InferFailedError) as refused:
        server.infer("newest", version="1")

    assert refused.value.status == 404
    assert refused.value.text == "Request for unknown model: 'newest' version 1 is not found"


def test_version_that_is_missing_is_warned_of(server):
    assert (
        "version 9 is specified for model 'partly', but the version directory is not present"
        in server.stderr
    )
    assert "leading zeros" in server.stderr


def test_models_of_all_repositories_serve(server):
    assert server.infer("second", 1.0) == [3.0]
