# SPDX-License-Identifier: Apache-2.0
"""Models in an S3 bucket, served by the real command."""

from __future__ import annotations

import json

import pytest

from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import is_ready
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import code, config, model
from tests.repository_e2e.server_process import ServerProcess
from tests.s3_server import ENVIRONMENT, S3Server

POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")


@pytest.fixture
def s3(tmp_path):
    with S3Server(tmp_path) as server:
        yield server


@pytest.fixture
def copies(tmp_path):
    """The folder for local copies."""
    path = tmp_path / "copies"
    path.mkdir()
    return path


@pytest.fixture
def start(s3, tmp_path, copies):
    """Starts servers of the bucket, after other repositories if there are any."""
    started = []

    def begin(*flags, repositories=(), **environment):
        folder = tmp_path / f"server{len(started)}"
        folder.mkdir()
        paths = [*repositories, s3.repository()]
        environment = {"TRITON_AWS_MOUNT_DIRECTORY": str(copies), **ENVIRONMENT, **environment}
        started.append(ServerProcess(folder, paths, flags, environment))
        return started[-1]

    yield begin
    for server in started:
        server.__exit__()


def is_empty(folder):
    return not list(folder.iterdir())


def test_models_of_a_bucket_and_a_folder_are_served_together(s3, start, tmp_path, copies):
    s3.put("far", model(code("y = x + 1")))
    near = tmp_path / "near" / "near" / "1"
    near.mkdir(parents=True)
    (near / "model.py").write_text(code("y = x + 2"))
    (near.parent / "config.pbtxt").write_text(config())
    server = start(repositories=(tmp_path / "near",)).await_ready()

    assert server.infer("far", 1.0) == [2.0]
    assert server.infer("near", 1.0) == [3.0]
    assert f"{s3.repository()}" in server.stdout  # in the table of options
    assert server.end() == 0
    assert is_empty(copies)


def test_changes_of_a_bucket_are_followed_and_its_absence_is_not_one(s3, start):
    s3.put("m", model(code("y = x + 1")))
    server = start(*POLL).await_ready()

    s3.put("m", {"1/model.py": code("y = x + 2")})
    s3.put("new", model(code("y = x + 3")))
    assert eventually(lambda: server.serves("new") and server.infer("m", 1.0) == [3.0])

    s3.put("m", {"1/model.py": "half of a file ("})
    assert eventually(lambda: "failed to load 'm' version 1" in server.output)
    assert server.infer("m", 1.0) == [3.0]

    s3.stop()
    assert eventually(lambda: "of this repository stay as they are" in server.output)
    assert server.infer("m", 1.0) == [3.0]
    assert server.infer("new", 1.0) == [4.0]

    s3.start()  # moto has forgotten everything: the bucket is there, but it is empty
    assert eventually(lambda: "can be listed again" in server.output)
    assert eventually(lambda: not server.serves("m"))
    assert server.output.count("stay as they are") == 1


def test_wrong_key_is_refused_and_the_right_one_of_a_file_is_not(s3, start, tmp_path):
    s3.put("m", model())
    key_id, secret = s3.require_keys()
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({
        "s3": {"": {"key_id": "wrong", "secret_key": "wrong"},
               f"s3://{s3.address}/bucket": {"key_id": key_id, "secret_key": secret}},
    }))  # fmt: skip

    refused = start(AWS_ACCESS_KEY_ID=key_id, AWS_SECRET_ACCESS_KEY="a-wrong-secret")
    assert refused.exit_code() == 1
    assert "access denied" in refused.output
    assert "a-wrong-secret" not in refused.output
    assert key_id not in refused.output

    server = start(
        "--log-verbose=1", TRITON_CLOUD_CREDENTIAL_PATH=str(file), AWS_ACCESS_KEY_ID="no"
    )
    server.await_ready()
    assert server.infer("m", 1.0) == [1.0]
    assert secret not in server.output
    assert key_id not in server.output


def test_missing_bucket_ends_the_start(s3, start):
    server = start("--model-repository", f"s3://{s3.address}/nowhere/models")

    assert server.exit_code() == 1
    assert f"failed to access 's3://{s3.address}/nowhere/models': not found" in server.stderr


def test_missing_package_is_named_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "gcsfs.py").write_text("raise ImportError('no gcsfs here')")
    environment = {"PYTHONPATH": str(tmp_path)}
    with ServerProcess(tmp_path, ["gs://bucket/models"], environment=environment) as server:
        assert server.exit_code() == 1

    assert "needs the package gcsfs" in server.stderr
    assert "pip install 'pytriton[gcs]'" in server.stderr


def test_triton_serves_the_models_of_a_bucket_beside_bound_ones(s3, monkeypatch):
    s3.put("far", model(code("y = x + 1")))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    http, grpc, metrics = free_ports(3)
    config = TritonConfig(
        model_repository=s3.repository(), http_port=http, grpc_port=grpc, metrics_port=metrics
    )
    with Triton(config=config) as triton:
        triton.run()

        assert is_ready(http, "far")
