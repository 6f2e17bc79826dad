# SPDX-License-Identifier: Apache-2.0
"""From the flags of model repositories to their settings."""

from __future__ import annotations

import logging

import msgspec
import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import FlagError, Flags
from pytriton.serving.server.options.repository_options import (
    RateLimitResource,
    RepositoryOptions,
    read_repository_options,
)
from pytriton.serving.server.options.server_options import ServerOptions


def options_from(**config: object) -> RepositoryOptions:
    return read_repository_options(Flags(config))


def refusal(**config: object) -> str:
    with pytest.raises(PyTritonValidationError) as caught:
        options_from(**config)
    return caught.value.message


def test_no_flags_give_tritons_defaults():
    assert options_from() == RepositoryOptions()


def test_every_flag_has_its_place():
    options = options_from(
        model_repository=["a", "b"],
        model_control_mode="EXPLICIT",
        load_model=["m", "n", "m"],
        model_config_name="h100",
        model_load_thread_count="7",
        model_load_retry_count="2",
        model_load_timeout_secs="1.5",
        backend_directory="backends",
        backend_config=["default-max-batch-size=8", "python,thread-pool-size=3", "tf,a=b=c,d"],
        min_supported_compute_capability="6.0",
        rate_limit="Execution_Count",
        rate_limit_resource=["R:4", "S:3:1"],
    )

    assert options == RepositoryOptions(
        paths=("a", "b"),
        model_control_mode="explicit",
        load_models=("m", "n"),
        model_config_name="h100",
        load_thread_count=7,
        load_retry_count=2,
        load_timeout_s=1.5,
        backend_directory="backends",
        backend_config={
            "": {"default-max-batch-size": "8"},
            "python": {"thread-pool-size": "3"},
            "tf": {"a": "b=c,d"},
        },
        default_max_batch_size=8,
        min_compute_capability=6.0,
        rate_limit=True,
        rate_limit_resources=(
            RateLimitResource(name="R", count=4),
            RateLimitResource(name="S", count=3, device=1),
        ),
    )


def test_options_cross_a_process_unchanged():
    options = ServerOptions(repository=options_from(backend_config="python,thread-pool-size=3"))

    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=ServerOptions)

    assert copy == options


@pytest.mark.parametrize(
    "mode, poll_s", [("none", 0), ("explicit", 0), ("poll", 5)], ids=["none", "explicit", "poll"]
)
def test_changes_are_looked_for_in_poll_mode_only(mode, poll_s):
    options = options_from(model_control_mode=mode, repository_poll_secs=5)

    assert options.repository_poll_s == poll_s


def test_poll_mode_looks_every_fifteen_seconds_by_default():
    assert options_from(model_control_mode="poll").repository_poll_s == 15


@pytest.mark.parametrize(
    "config", [{"disable_auto_complete_config": True}, {"strict_model_config": "true"}]
)
def test_configurations_are_not_completed_where_that_is_disabled(config):
    assert not options_from(**config).auto_complete


def test_backend_hears_its_settings_in_tritons_order():
    options = options_from(
        backend_config=["python,thread-pool-size=5", "python,auto-x=1", "other,a=b", "all=1"]
    )

    assert list(options.backend_settings("python").items()) == [
        ("all", "1"),
        ("auto-complete-config", "true"),
        ("auto-x", "1"),
        ("backend-directory", "/opt/tritonserver/backends"),
        ("min-compute-capability", "7.500000"),
        ("thread-pool-size", "5"),
        ("default-max-batch-size", "4"),
    ]


def test_batch_size_of_a_backend_goes_before_that_of_all():
    options = options_from(
        backend_config=["default-max-batch-size=8", "mine,default-max-batch-size=2"]
    )

    assert list(options.backend_settings("mine").items()) == [
        ("auto-complete-config", "true"),
        ("backend-directory", "/opt/tritonserver/backends"),
        ("default-max-batch-size", "2"),
        ("min-compute-capability", "7.500000"),
    ]
    assert options.backend_settings("other")["default-max-batch-size"] == "8"


@pytest.mark.parametrize(
    "config, expected",
    [
        (
            {"load_model": ["m"]},
            (
                "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as "
                "well."
            ),
        ),
        (
            {"load_model": ["*", "m"], "model_control_mode": "explicit"},
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (
            {"model_control_mode": "auto"},
            (
                "invalid argument for --model-control-mode: expected one of none, poll, explicit, "
                "got 'auto'"
            ),
        ),
        ({"rate_limit": "on"}, "invalid argument for --rate-limit: expected one of off"),
        (
            {"rate_limit_resource": ["R"]},
            (
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                "'<resource_name>:<count>'. Got R"
            ),
        ),
        ({"rate_limit_resource": ["R:x"]}, "Got R:x"),
        (
            {"backend_config": ["python"]},
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got python",
        ),
        ({"backend_config": [",a=b"]}, "Got ,a=b"),
        (
            {"backend_config": ["python,shm-default-byte-size=5"]},
            (
                "Expected an integer of at least 1048576 as shm-default-byte-size for "
                "--backend-config, got '5'"
            ),
        ),
        ({"backend_config": ["python,thread-pool-size=many"]}, "at least 1 as thread-pool-size"),
        ({"backend_config": ["python,shm-region-prefix-name="]}, "a text as shm-region-prefix"),
        ({"backend_config": ["default-max-batch-size=-1"]}, "at least 0 as default-max-batch"),
        ({"model_config_name": "a b"}, "a name without spaces and slashes"),
        ({"model_config_name": "../x"}, "a name without spaces and slashes"),
        ({"model_load_thread_count": 0}, "for --model-load-thread-count, got 0"),
    ],
)
def test_bad_value_is_refused(config, expected):
    assert expected in refusal(**config)


def test_refusal_names_its_flag():
    with pytest.raises(FlagError) as caught:
        options_from(backend_config="python")

    assert caught.value.flag == "--backend-config"


def test_setting_that_the_python_backend_lacks_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING, "pytriton"):
        options_from(backend_config=["python,foo=1", "python,shm-growth-byte-size=1", "tf,bar=1"])

    assert [record.getMessage() for record in caplog.records] == [
        "--backend-config: the Python backend has no setting foo"
    ]


def test_empty_path_is_refused():
    expected = "Expected a path for --model-repository, got ''"

    assert refusal(model_repository=["a", ""]) == expected
