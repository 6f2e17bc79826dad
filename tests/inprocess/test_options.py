# SPDX-License-Identifier: Apache-2.0
"""The settings of in-process servers."""

from __future__ import annotations

import dataclasses
import enum

import pytest

import tritonserver
from pytriton.base.settings import RayOptions
from pytriton.inprocess.options import check_types, server_settings
from pytriton.serving.server.options.server_options import ServerOptions
from tritonserver import LogFormat, ModelControlMode, Options, RateLimitMode


def test_package_has_the_names_of_tritonserver():
    names = [name for name in vars(tritonserver) if not name.startswith("_")]

    assert len(names) == 29
    assert tritonserver.__version__ == "UNKNOWN"
    assert str(tritonserver.NotFoundError).startswith("<class 'tritonserver.")
    assert sum(issubclass(getattr(tritonserver, name), enum.Enum) for name in names) == 11
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tritonserver.Nothing


def test_default_options_log_nothing_and_open_no_cache():
    options = ServerOptions.from_triton_config(server_settings(Options("models")))

    assert options.repository.paths == ("models",)
    assert not (options.log.info)
    assert not (options.log.warning)
    assert not (options.log.error)
    assert options.cache_bytes == 0
    assert options.exit_timeout_s == 30


def test_options_reach_the_server():
    options = ServerOptions.from_triton_config(
        server_settings(
            Options(
                ["a", "b"],
                server_id="me",
                model_control_mode=ModelControlMode.EXPLICIT,
                startup_models=["x"],
                strict_model_config=True,
                rate_limiter_mode=RateLimitMode.EXEC_COUNT,
                rate_limiter_resources=[
                    tritonserver.RateLimiterResource("R", 3, 1),
                    tritonserver.RateLimiterResource("S", 2),
                ],
                cache_config={"local": {"size": 1024}},
                log_warn=True,
                log_format=LogFormat.ISO8601,
                metrics=False,
                metrics_interval=50,
                backend_configuration={"": {"default-max-batch-size": 8}, "a": {"on": True}},
                metrics_configuration={"": {"summary_latencies": True}},
                model_load_retry_count=2,
                model_load_thread_count=3,
                model_namespacing=True,
            )
        )
    )

    repository = options.repository
    assert repository.paths == ("a", "b")
    assert options.id == "me"
    assert repository.load_models == ("x",)
    assert not repository.auto_complete
    assert [(each.name, each.count, each.device) for each in repository.rate_limit_resources] == [
        ("R", 3, 1),
        ("S", 2, None),
    ]
    assert options.cache_bytes == 1024
    assert (options.log.info, options.log.warning, options.log.error) == (False, True, True)
    assert options.log.format == "ISO8601"
    assert not options.metrics.allow
    assert options.metrics_options.interval_ms == 50
    assert repository.backend_config == {"": {"default-max-batch-size": "8"}, "a": {"on": "true"}}
    assert options.metrics_options.latencies.quantiles
    assert (repository.load_retry_count, repository.load_thread_count) == (2, 3)
    assert repository.namespacing


def test_models_may_run_on_a_cluster():
    given = Options("models", executor="ray", ray_address="head:1", ray_start_timeout=3)
    check_types(given)
    options = ServerOptions.from_triton_config(server_settings(given))

    assert options.repository.executor == "ray"
    assert options.ray == RayOptions(address="head:1", start_timeout_s=3.0)


def test_verbose_log_has_everything():
    options = ServerOptions.from_triton_config(server_settings(Options(log_verbose=2)))

    assert options.log.info
    assert options.log.warning
    assert options.log.error
    assert options.log.verbose == 2


@pytest.mark.parametrize(
    "name", [each.name for each in dataclasses.fields(Options) if each.name != "model_repository"]
)
def test_option_of_a_wrong_type_is_refused(name):
    options = Options("models")
    check_types(options)
    setattr(options, name, object())

    with pytest.raises(TypeError, match=rf"Options.{name} must be an? "):
        check_types(options)


def test_option_must_have_a_repository():
    with pytest.raises(tritonserver.InvalidArgumentError, match="repository"):
        check_types(Options(None))
    with pytest.raises(TypeError, match="model_repository"):
        check_types(Options(3))
    with pytest.raises(TypeError, match="exit_timeout must be an int, got bool: True"):
        check_types(Options(exit_timeout=True))


@pytest.mark.parametrize("value, level", [(False, 0), (True, 1), (6, 6)])
def test_verbose_lines_may_be_switched_on_like_others(value, level):
    options = Options("models", log_verbose=value)
    check_types(options)

    assert server_settings(options)["log_verbose"] == level
    assert type(server_settings(options)["log_verbose"]) is int
