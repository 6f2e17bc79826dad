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
        "none_there": versions("version_policy { specific { versions: [ 9 ] } }", 1),
        "zeros": versions("version_policy { all { } }", 1, "002"),
        "no_versions": {"config.pbtxt": config()},
        "twice": model(),
        "configured": model(
            settings=config(max_batch_size=1),
            **{
                "configs/large.pbtxt": config(max_batch_size=64),
                "configs/other.pbtxt": config(max_batch_size=7),
            },
        ),
        "incomplete": {"1/model.py": code()},
        ".hidden": model("raise RuntimeError('nobody loads this')"),
    }
    second = {"twice": model(), "second": model(code("y = x + 2"))}
    flags = [
        "--exit-on-error=false",
        "--model-config-name=large",
        "--disable-auto-complete-config",
    ]
    return start_module_server(first, second, flags=flags).await_ports()


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


@pytest.mark.parametrize("name", ["none_there", "no_versions"])
def test_model_without_a_version_is_unavailable(server, name):
    row = server.index()[name]

    assert row["state"] == "UNAVAILABLE"
    assert "at least one version must be available under the version policy" in row["reason"]


def test_model_in_two_repositories_is_not_served(server):
    row = server.index()["twice"]

    assert row["state"] == "UNAVAILABLE"
    assert row["reason"] == "model appears in two or more repositories"
    assert not server.serves("twice")


def test_models_of_all_repositories_serve(server):
    assert server.infer("second", 1.0) == [3.0]


def test_named_configuration_is_used_where_there_is_one(server):
    assert server.get("/v2/models/configured/config").json["max_batch_size"] == 64
    assert server.get("/v2/models/second/config").json["max_batch_size"] == 8


def test_model_needs_a_configuration_where_none_is_completed(server):
    row = server.index()["incomplete"]

    assert row["state"] == "UNAVAILABLE"
    assert "failed to open text file for read" in row["reason"]
    assert "incomplete/config.pbtxt" in row["reason"]


def test_hidden_directory_is_no_model(server):
    assert ".hidden" not in server.index()
