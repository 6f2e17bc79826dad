# SPDX-License-Identifier: Apache-2.0
"""How a server with sandboxes starts, refuses, and grants: its options and those of models."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

from pytriton.base.errors import UnsupportedError
from pytriton.base.sandbox import SandboxMachine, SandboxSettings, read_sandbox_settings
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.repository.loading.sandboxes import Sandboxes
from pytriton.serving.server.options.endpoints import Surroundings
from pytriton.serving.server.options.server_options import AccessOptions, ServerOptions
from pytriton.serving.server.repository_core import kept_out_of_sandboxes
from tests.e2e.http_client import infer
from tests.repository_e2e.model_files import model
from tests.sandbox.attacks import FILES, SOCKETS, hostile_model
from tests.sandbox.conftest import require

COMPLETE = SandboxMachine(
    system="Linux",
    processor="x86_64",
    landlock=7,
    has_filters=True,
    has_mounts=True,
    groups={"pids": "/p", "memory": "/m"},
)
OLD = SandboxMachine(system="Linux", processor="x86_64", has_filters=True)


def sandboxes(sandbox, machine, *allowed):
    return Sandboxes(read_sandbox_settings(sandbox, allowed), [], lambda: machine)


def options(surroundings=None, **values):
    return ServerOptions.from_triton_config(values, surroundings=surroundings or Surroundings())


def test_options_are_read():
    read = options(sandbox="on,network", sandbox_allow=["off", "read=/data"]).sandbox

    assert read == read_sandbox_settings("on,network", ["off,read=/data"])
    assert options().sandbox == SandboxSettings()


def test_variable_is_the_default_of_the_option():
    surroundings = Surroundings(variables={"PYTRITON_SANDBOX": "strict"})

    assert options(surroundings).sandbox.is_strict
    assert options(surroundings, sandbox="off").sandbox == SandboxSettings()


@pytest.mark.parametrize(
    "values, flag",
    [({"sandbox": "maybe"}, "--sandbox: "), ({"sandbox_allow": ["x"]}, "--sandbox-allow: ")],
)
def test_wrong_option_is_named(values, flag):
    with pytest.raises(PyTritonValidationError, match=flag):
        options(**values)


def test_strict_server_does_not_start_where_a_part_is_missing():
    with pytest.raises(UnsupportedError, match=r"lacks parts of it: Landlock \(Linux 5.13\)"):
        sandboxes("strict", OLD).start()


def test_strict_server_starts_where_all_parts_are_there():
    made = sandboxes("strict", COMPLETE)
    made.start()
    made.close()


def test_server_tells_which_parts_are_missing(caplog):
    caplog.set_level(logging.INFO)

    made = sandboxes("on", OLD)
    made.start()
    made.close()

    assert "lacks Landlock (Linux 5.13): workers see all files" in caplog.text
    assert "lacks a mount namespace" in caplog.text
    assert "workers run in sandboxes: seccomp" in caplog.text


def test_server_without_sandboxes_does_not_look_for_their_parts():
    def find():
        raise AssertionError("nobody needs it")

    Sandboxes(SandboxSettings(), [], find).start()


def test_other_systems_are_told_that_they_have_no_sandboxes(caplog):
    made = sandboxes("on", SandboxMachine(system="Darwin"))
    made.start()
    made.close()

    assert "lacks a sandbox on Darwin: workers run without one" in caplog.text
    with pytest.raises(UnsupportedError, match="Darwin"):
        sandboxes("strict", SandboxMachine(system="Darwin")).start()


def report(server, name, key):
    text = json.dumps({"key": str(key), "port": server.http_port})
    facts = np.array([text.encode()], np.object_)
    return infer(server.http_port, name, {"FACTS": facts})["REPORT"].item().decode()


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text("a secret")
    return path


READS, CONNECTS = FILES["reads_the_key_of_the_server"], SOCKETS["connects_to_a_port"]


@pytest.mark.e2e
def test_grants_open_what_they_name_and_models_without_sandboxes_escape(start_server, key):
    """Shows also that these attacks work where nothing stops them."""
    require("landlock", "seccomp")
    names = {
        "granted_read": hostile_model(READS, f"on,read={key}"),
        "granted_network": hostile_model(CONNECTS, "on,network"),
        "free": hostile_model(READS, "off"),
        "free_network": hostile_model(CONNECTS, "off"),
        "confined": hostile_model(READS),
        "confined_network": hostile_model(CONNECTS),
    }
    server = start_server(
        names, flags=["--sandbox=on", f"--sandbox-allow=network,off,read={key}"]
    ).await_ready()

    reports = {name: report(server, name, key).partition(":")[0] for name in names}

    assert reports == {
        "granted_read": "escaped",
        "granted_network": "escaped",
        "free": "escaped",
        "free_network": "escaped",
        "confined": "contained",
        "confined_network": "contained",
    }


@pytest.mark.e2e
def test_model_asks_for_more_than_the_operator_allows(start_server):
    require("landlock", "seccomp")
    models = {"greedy": hostile_model(CONNECTS, "on,network"), "echo": model()}
    server = start_server(models, flags=["--sandbox=on"])

    assert server.exit_code() == 1
    assert "which the operator of this server does not allow" in server.output
    assert "--sandbox-allow=network would" in server.output


@pytest.mark.e2e
def test_model_has_a_sandbox_of_its_own_on_a_server_without(start_server, key):
    require("landlock", "seccomp")
    models = {"careful": hostile_model(READS, "on"), "careless": hostile_model(READS)}
    server = start_server(models).await_ready()

    assert report(server, "careful", key).startswith("contained")
    assert report(server, "careless", key).startswith("escaped")


@pytest.mark.parametrize("text", ['keys_file = "other.json"\n', "x ="])
def test_policy_with_its_keys_is_kept_out_of_sandboxes(tmp_path, text):
    policy = tmp_path / "auth.toml"
    policy.write_text(text)

    kept_out = kept_out_of_sandboxes(ServerOptions(access=AccessOptions(config=str(policy))))

    assert str(policy) in kept_out
    assert (str(tmp_path / "other.json") in kept_out) is ("other" in text)
