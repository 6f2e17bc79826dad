# SPDX-License-Identifier: Apache-2.0
import dataclasses
import logging
import os
import pathlib

import pytest

from pytriton.base.triton_config import ENVIRONMENT_PREFIX, TritonConfig
from pytriton.exceptions import PyTritonValidationError


@pytest.fixture(autouse=True)
def _no_configuration_in_environment(monkeypatch):
    for variable in list(os.environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(variable)


def _set(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(ENVIRONMENT_PREFIX + name, value)


def test_config_has_fields_that_are_none():
    values = TritonConfig().to_dict()

    assert len(values) == 94
    assert set(values.values()) == {None}


def test_config_is_a_dataclass_of_its_own_type():
    config = TritonConfig(http_port=1)

    assert isinstance(config, TritonConfig)
    assert dataclasses.is_dataclass(config)
    assert dataclasses.replace(config, grpc_port=2) == TritonConfig(http_port=1, grpc_port=2)


def test_config_refuses_positional_arguments():
    expected = "TritonConfig initialization can't be used with positional arguments"
    with pytest.raises(TypeError, match=expected):
        TritonConfig("/models")


def test_config_refuses_unknown_keyword():
    with pytest.raises(TypeError, match="htttp_port"):
        TritonConfig(htttp_port=1)


def test_config_refuses_a_server_without_protocol():
    with pytest.raises(PyTritonValidationError, match="`http` or `grpc` endpoint has to be allow"):
        TritonConfig(allow_http=False, allow_grpc=False)


@pytest.mark.parametrize("protocol", ["allow_http", "allow_grpc"])
def test_config_takes_a_server_with_one_protocol(protocol):
    assert getattr(TritonConfig(**{protocol: False}), protocol) is False


def test_response_cache_byte_size_is_the_local_cache():
    config = TritonConfig(response_cache_byte_size=1024)

    assert config.cache_config == ["local,size=1024"]
    assert "response_cache_byte_size" not in config.to_dict()


def test_response_cache_byte_size_contradicts_cache_config():
    with pytest.raises(PyTritonValidationError, match="`response_cache_byte_size` or `cache_conf"):
        TritonConfig(response_cache_byte_size=1, cache_config=["local,size=2"])


def test_from_dict_converts_text_to_the_type_of_the_field():
    config = TritonConfig.from_dict(
        {
            "http_port": "8015",
            "log_file": "/logs/triton.log",
            "allow_grpc": "false",
            "exit_on_error": True,
            "trace_config": ("mode=triton", "rate=1"),
            "id": None,
        }
    )

    assert config == TritonConfig(
        http_port=8015,
        log_file=pathlib.Path("/logs/triton.log"),
        allow_grpc=False,
        exit_on_error=True,
        trace_config=["mode=triton", "rate=1"],
    )


def test_from_dict_warns_of_unknown_names(caplog):
    with caplog.at_level(logging.WARNING):
        config = TritonConfig.from_dict({"http_prot": 1, "http_port": 2})

    assert config == TritonConfig(http_port=2)
    (record,) = caplog.records
    assert record.getMessage().startswith("Ignoring http_prot=1")
    assert "Available fields: model_repository, id," in record.getMessage()


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("http_port", "eight", "type int for `http_port`, got 'eight'"),
        ("allow_http", "maybe", "type bool for `allow_http`, got 'maybe'"),
        ("cache_config", 5, "type list for `cache_config`, got 5"),
        ("log_file", 5, "type Path for `log_file`, got 5"),
    ],
)
def test_from_dict_names_a_value_it_cannot_convert(name, value, expected):
    with pytest.raises(PyTritonValidationError, match=expected):
        TritonConfig.from_dict({name: value})


@pytest.mark.parametrize(
    "text, value",
    [("True", True), ("1", True), ("yes", True), ("False", False), ("0", False), ("no", False)],
)
def test_from_env_reads_booleans(monkeypatch, text, value):
    _set(monkeypatch, STRICT_READINESS=text)

    assert TritonConfig.from_env().strict_readiness is value


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"CACHE_CONFIG_10": "c", "CACHE_CONFIG_2": "b", "CACHE_CONFIG_0": "a"}, ["a", "b", "c"]),
        ({"CACHE_CONFIG": "local,size=1024"}, ["local,size=1024"]),
        ({"CACHE_CONFIG_0": "a", "CACHE_CONFIG": "b"}, ["b", "a"]),
    ],
)
def test_from_env_orders_numbered_elements_behind_the_one_without(monkeypatch, variables, expected):
    _set(monkeypatch, **variables)

    assert TritonConfig.from_env().cache_config == expected


def test_from_env_knows_the_names_that_guides_show(monkeypatch):
    _set(monkeypatch, LOG_VERBOSITY="4", RESPONSE_CACHE_BYTE_SIZE="1024")

    config = TritonConfig.from_env()

    assert config.log_verbose == 4
    assert config.cache_config == ["local,size=1024"]


def test_from_env_keeps_the_address_of_an_archive(monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_RAY_WORKING_DIR", "s3://bucket/code.zip")

    assert TritonConfig.from_env().ray_working_dir == "s3://bucket/code.zip"


def test_from_env_warns_of_variables_that_are_no_field(monkeypatch, caplog):
    _set(monkeypatch, HTTP_PORT_0="1")

    assert TritonConfig.from_env() == TritonConfig()
    assert "Ignoring http_port_0=1" in caplog.text


def test_resolved_prefers_code_to_environment_to_default(monkeypatch):
    _set(monkeypatch, HTTP_PORT="1", GRPC_PORT="2", ALLOW_METRICS="true")

    config = TritonConfig.resolved(TritonConfig(http_port=7, allow_metrics=False))

    assert config == TritonConfig(http_port=7, grpc_port=2, allow_metrics=False)


def test_resolved_without_config_is_the_environment(monkeypatch):
    _set(monkeypatch, HTTP_PORT="1")

    assert TritonConfig.resolved() == TritonConfig(http_port=1)


def test_resolved_checks_the_whole(monkeypatch):
    _set(monkeypatch, ALLOW_HTTP="false")

    with pytest.raises(PyTritonValidationError, match="has to be allowed"):
        TritonConfig.resolved(TritonConfig(allow_grpc=False))


def test_resolved_refuses_what_is_no_configuration():
    with pytest.raises(PyTritonValidationError, match="config: expected a TritonConfig, got"):
        TritonConfig.resolved({"http_port": 1})
