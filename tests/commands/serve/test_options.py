# SPDX-License-Identifier: Apache-2.0
"""The command line of `pytriton serve`."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import pytest

from pytriton.base.settings import BY_KEY, BY_NAME
from pytriton.base.triton_config import TritonConfig
from pytriton.model_config import DynamicBatcher, ModelConfig
from pytriton.tools.check import openness
from pytriton.tools.commands.serve.loading import ServeTarget
from pytriton.tools.commands.serve.options import ServeOptions, read_options


def test_defaults_are_for_this_machine_only(monkeypatch):
    monkeypatch.delenv("TRITON_ACCESS_TOKEN", raising=False)
    options = read_options(["models.py"])

    assert options == ServeOptions((ServeTarget("models.py"),))
    config = options.server_config()
    assert (config.http_address, config.grpc_address, config.metrics_address) == (
        "127.0.0.1", "127.0.0.1", "127.0.0.1",
    )  # fmt: skip
    assert config.http_port is None  # the environment may say it


def test_settings_of_models_replace_those_that_are_declared():
    options = read_options(["m.py:f", "--max-batch-size", "16", "--batch-delay-us", "500"])

    config = options.model_config(ModelConfig(batching=False, response_cache=True))

    assert (config.batching, config.max_batch_size, config.response_cache) == (True, 16, True)
    assert config.batcher == DynamicBatcher(500)


def test_declared_settings_stay_without_options():
    declared = ModelConfig(max_batch_size=7)

    assert read_options(["m.py"]).model_config(declared) == declared


def test_token_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRITON_ACCESS_TOKEN", "secret")

    assert read_options(["m.py"]).access_token == "secret"
    assert read_options(["m.py", "--access-token", "other"]).access_token == "other"


def test_options_reach_another_process():
    options = read_options(["m.py:a,b", "n.py", "--host", "::1", "--http-port", "0", "--reload"])

    assert ServeOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_settings_of_the_server_are_options():
    arguments = [
        "--auth-config", "auth.toml", "--tls-cert=a.pem", "--tls-key", "a.key", "--secure",
        "--cors-allow-origins", "https://a.example", "--cors-allow-origins=https://b.example",
        "--log-format", "json", "--allow-page=false", "--metrics-address=127.0.0.1",
        "--http-restricted-api=inference:key=1", "--exit-timeout-secs=7",
    ]  # fmt: skip
    config = read_options(["m.py", "--host=0.0.0.0", *arguments]).server_config()

    given = {name: value for name, value in config.to_dict().items() if value is not None}
    assert given == {
        "http_address": "0.0.0.0",
        "grpc_address": "0.0.0.0",
        "metrics_address": "127.0.0.1",
        "auth_config": pathlib.Path("auth.toml"),
        "tls_cert": pathlib.Path("a.pem"),
        "tls_key": pathlib.Path("a.key"),
        "secure": True,
        "cors_allow_origins": ["https://a.example", "https://b.example"],
        "log_format": "json",
        "allow_page": False,
        "http_restricted_api": "inference:key=1",
        "exit_timeout_secs": 7,
    }


@pytest.mark.parametrize("field", dataclasses.fields(TritonConfig), ids=lambda field: field.name)
def test_every_setting_that_has_an_effect_is_an_option(field):
    setting = BY_KEY[field.name]
    if not setting.has_effect:
        pytest.skip("it has none")
    value = "1.2" if setting.name == "tls-min-version" else (setting.choices or ("1",))[0]
    given = f"--{setting.name}={value}" if setting.value else f"--{setting.name}"

    config = read_options(["m.py", given]).server_config()

    assert getattr(config, field.name) is not None


def test_options_that_the_check_advises_are_there():
    source = pathlib.Path(openness.__file__).read_text()
    advised = {name for name in re.findall(r"--([a-z][a-z-]+)", source) if name in BY_NAME}

    assert {"auth-config", "tls-cert", "cors-allow-origins", "allowed-hosts"} <= advised
    assert all(BY_NAME[name].in_config and BY_NAME[name].has_effect for name in advised)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ([], "the following arguments are required: FILE.py"),
        (["m.py", "--max-batch-size", "0"], "expected a whole number of at least 1, got 0"),
        (["m.py", "--http-port", "70000"], "expected a whole number from 0 to 65535, got 70000"),
        (["m.py", "--http-port", "http"], "expected a whole number from 0 to 65535, got http"),
        (["m.py", "--instances", "1.5"], "expected a whole number of at least 1, got 1.5"),
        (["m.py:a,b", "--name", "X"], "--name is for one model, got 2"),
        (["m.py:a b"], "Expected FILE.py:object"),
        (["m.py", "--log-level", "loud"], "invalid choice: 'loud'"),
        (["m.py", "--allow-page", "maybe"], "Expected true, on, 1, false, off or 0"),
        (["m.py", "--log-format", "xml"], "invalid choice: 'xml'"),
        (["m.py", "--auth-confg=a"], "did you mean --auth-config?"),
    ],
)
def test_wrong_command_line_is_told(capsys, arguments, problem):
    with pytest.raises(SystemExit) as end:
        read_options(arguments)

    assert end.value.code == 2
    assert problem in capsys.readouterr().err
