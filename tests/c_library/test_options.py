# SPDX-License-Identifier: Apache-2.0
"""The settings that an application sets, as the server has them."""

from __future__ import annotations

import ctypes

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.inprocess.c_library.options import OptionHandles
from pytriton.runtime.native_backend.api_table import FUNCTIONS
from pytriton.runtime.native_backend.callbacks import exported


@pytest.fixture
def options() -> OptionHandles:
    return OptionHandles()


def call(options: OptionHandles, name: str, *arguments: object) -> None:
    functions = {**exported(options), **options.setters()}
    functions[f"TRITONSERVER_ServerOptions{name}"](*arguments)


def made(options: OptionHandles) -> int:
    place = ctypes.c_uint64()
    call(options, "New", ctypes.addressof(place))
    return place.value


def test_every_function_but_those_of_the_log_is_served(options):
    functions = {**exported(options), **options.setters()}
    missing = {name for name in FUNCTIONS if "_ServerOptions" in name} - set(functions)

    assert {name.removeprefix("TRITONSERVER_ServerOptionsSetLog") for name in missing} == {
        "Error", "File", "Format", "Info", "Verbose", "Warn",
    }  # fmt: skip


def test_settings_are_those_of_triton_unless_they_are_set(options):
    settings = options.read(made(options))

    assert settings.id == "triton"
    assert not settings.repository.auto_complete  # the configuration is strict
    assert settings.exit_on_error
    assert not settings.http.allow
    assert not settings.grpc.allow
    assert settings.frontend_processes == 0


def test_settings_reach_the_server(options):
    handle = made(options)
    for name, *values in (
        ("SetServerId", b"mine"),
        ("SetModelRepositoryPath", b"/one"),
        ("SetModelRepositoryPath", b"/two"),
        ("SetModelControlMode", 2),
        ("SetStartupModel", b"a"),
        ("SetStartupModel", b"b"),
        ("SetStrictModelConfig", False),
        ("SetRateLimiterMode", 1),
        ("AddRateLimiterResource", b"R1", 4, -1),
        ("AddRateLimiterResource", b"R2", 5, 0),
        ("SetCacheConfig", b"local", b'{"size": "1048576"}'),
        ("SetExitOnError", False),
        ("SetStrictReadiness", False),
        ("SetExitTimeout", 7),
        ("SetBackendDirectory", b"/backends"),
        ("SetBackendConfig", b"python", b"shm-default-byte-size", b"2000000"),
        ("SetBackendConfig", b"", b"default-max-batch-size", b"6"),
        ("SetMetrics", True),
        ("SetGpuMetrics", False),
        ("SetMetricsInterval", 500),
        ("SetMetricsConfig", b"", b"summary_latencies", b"true"),
        ("SetModelLoadThreadCount", 2),
        ("SetModelNamespacing", True),
        ("SetHostPolicy", b"gpu_0", b"numa-node", b"0"),
        ("SetCudaMemoryPoolByteSize", 0, 1 << 20),
        ("SetModelLoadDeviceLimit", 2, 0, 0.5),
    ):
        call(options, name, handle, *values)

    settings = options.read(handle)
    repository = settings.repository
    assert settings.id == "mine"
    assert repository.paths == ("/one", "/two")
    assert (repository.model_control_mode, repository.load_models) == ("explicit", ("a", "b"))
    assert repository.auto_complete
    assert [(each.name, each.count, each.device) for each in repository.rate_limit_resources] == [
        ("R1", 4, None), ("R2", 5, 0),
    ]  # fmt: skip
    assert settings.cache_bytes == 1 << 20
    assert (settings.exit_on_error, settings.strict_readiness) == (False, False)
    assert settings.exit_timeout_s == 7
    assert repository.backend_directory == "/backends"
    assert repository.backend_config["python"] == {"shm-default-byte-size": "2000000"}
    assert repository.default_max_batch_size == 6
    assert not settings.metrics_options.gpu
    assert settings.metrics_options.interval_ms == 500
    assert settings.metrics_options.latencies.quantiles
    assert repository.load_thread_count == 2
    assert repository.namespacing


def test_polling_is_left_to_the_application(options):
    handle = made(options)
    call(options, "SetModelControlMode", handle, 1)

    assert options.read(handle).repository.repository_poll_s > 10**6


@pytest.mark.parametrize(
    "name,arguments,message",
    [
        ("SetModelControlMode", (9,), "unknown control mode '9'"),
        ("SetRateLimiterMode", (-1,), "unknown rate limit mode '-1'"),
        ("SetServerId", (None,), "expected a text, got NULL"),
        ("SetServerId", (b"\xff",), "expected a text in UTF-8"),
        ("SetCacheConfig", (b"local", b"nonsense"), "expected settings of a cache as JSON"),
        ("SetCacheConfig", (b"local", b"[]"), "expected settings of a cache as JSON"),
    ],
)
def test_wrong_value_is_refused_at_once(options, name, arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(options, name, made(options), *arguments)


def test_settings_that_contradict_each_other_are_refused_when_the_server_is_made(options):
    handle = made(options)
    call(options, "SetStartupModel", handle, b"a")

    with pytest.raises(InvalidArgumentError, match="requires setting"):
        options.read(handle)


def test_deleted_options_are_unknown(options):
    handle = made(options)
    call(options, "Delete", handle)

    with pytest.raises(InvalidArgumentError, match="expected a handle of options of a server"):
        options.read(handle)
