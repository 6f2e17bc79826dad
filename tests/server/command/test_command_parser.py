# SPDX-License-Identifier: Apache-2.0
"""From the arguments of `tritonserver` to the values that `ServerOptions` reads."""

from __future__ import annotations

import pytest

from pytriton.base.settings import BY_NAME, SETTINGS, Takes
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.options.flags import FlagError
from pytriton.serving.server.options.server_options import ServerOptions

# A value that each kind of option takes; those with a syntax of their own follow.
VALUES = {
    Takes.BOOLEAN: "true",
    Takes.INTEGER: "77",
    Takes.NUMBER: "7.5",
    Takes.TEXT: "x",
    Takes.PATH: "x",
    Takes.PATTERN: "x.*",
}
OWN_VALUES = {
    "access-log-fields": "worker_s,queue_s",
    "access-log-format": "json",
    "backend-config": "python,thread-pool-size=3",
    "cache-config": "local,size=5",
    "cors-allow-origins": "https://*.example.com,http://localhost:*",
    "cuda-memory-pool-byte-size": "0:1024",
    "cuda-virtual-address-size": "0:1024",
    "executor": "ray",
    "landing-page": "none",
    "frontend-processes": "3",
    "grpc-infer-response-compression-level": "high",
    "grpc-restricted-protocol": "trace:k=v",
    "host-policy": "cpu,cpu-cores=0-1",
    "http-restricted-api": "trace:k=v",
    "log-format": "ISO8601",
    "shadow-share": "0.5",
    "metrics-config": "counter_latencies=false",
    "model-control-mode": "explicit",
    "model-load-gpu-limit": "0:0.5",
    "model-signing-certificates": __file__,
    "model-signing-key": __file__,
    "model-signing-trust-root": __file__,
    "rate-limit": "execution_count",
    "rate-limit-resource": "R:1",
    "ray-address": "auto",
    "ray-working-dir": "/tmp",
    "sagemaker-safe-port-range": "1-3",
    "sandbox": "on,network,memory=4GiB",
    "sandbox-allow": "off,read=/data",
    "tls-client-auth": "optional",
    "tls-min-version": "1.3",
    "trace-config": "rate=5",
    "trusted-proxies": "10.0.0.0/8,127.0.0.1",
}
PORTS = ["--http-port=1", "--grpc-port=2", "--metrics-port=3"]
# They contradict others, or need some.
IDENTITY = [
    "--model-signing-identity=i",
    "--model-signing-issuer=https://i",
    f"--model-signing-trust-root={__file__}",
]
NEEDS = {
    "model-signing-identity": IDENTITY[1:],
    "model-signing-issuer": IDENTITY[::2],
    "model-signing-trust-root": IDENTITY[:2],
    "secure": ["--tls-cert=c", "--tls-key=k", "--auth-config=a"],
    "require-signed-models": [f"--model-signing-key={__file__}"],
    "load-model": ["--model-control-mode=explicit"],
    "grpc-use-ssl": ["--grpc-server-cert=c", "--grpc-server-key=k"],
    "grpc-use-ssl-mutual": [
        "--grpc-server-cert=c",
        "--grpc-server-key=k",
        "--grpc-root-cert=r",
    ],
    "tls-cert": ["--tls-key=k"],
    "tls-key": ["--tls-cert=c"],
    "tls-client-ca": ["--tls-cert=c", "--tls-key=k"],
    "tls-client-auth": ["--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"],
}


def refusal(*arguments):
    with pytest.raises(PyTritonValidationError) as caught:
        parse(arguments)
    return caught.value.message


def test_value_follows_an_equals_sign_or_a_space():
    assert parse(["--http-port=5", "--id", "me"]).values == {"http_port": "5", "id": "me"}


def test_value_may_contain_equals_signs_and_begin_with_dashes():
    assert parse(["--id=a=b", "--model-config-name", "--x"]).values == {
        "id": "a=b",
        "model_config_name": "--x",
    }


def test_last_value_wins_unless_the_option_is_repeatable():
    line = parse(["--id=a", "--id=b", "--model-repository=c", "--model-repository", "d"])

    assert line.values == {"id": "b", "model_repository": ["c", "d"]}


def test_option_without_a_value_needs_none():
    assert parse(["--disable-auto-complete-config", "--id=a"]).values == {
        "disable_auto_complete_config": "true",
        "id": "a",
    }


def test_model_store_is_another_name_of_model_repository():
    line = parse(["--model-store=a", "--model-repository=b"])

    assert line.values == {"model_repository": ["a", "b"]}
    assert line.warnings == []


def test_help_wins_over_what_follows_it():
    assert parse(["--id=a", "--help", "junk"]).wants_help
    assert parse(["-h"]).wants_help
    assert parse(["--version", "junk"]).wants_version


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["junk"], "Unexpected argument: junk"),
        (["--id=a", "--", "--id=b"], "Unexpected argument: --id=b"),
        (["-x"], "Unexpected argument: -x"),
        (["--bogus=1"], "tritonserver: unrecognized option '--bogus=1'"),
        (
            ["--log-f=x"],
            (
                "tritonserver: option '--log-f=x' is ambiguous; possibilities: '--log-format' "
                "'--log-file'"
            ),
        ),
        (
            ["--htpp-port=1"],
            "tritonserver: unrecognized option '--htpp-port=1', did you mean --http-port?",
        ),
        (["--allow-http"], "tritonserver: option '--allow-http' requires an argument"),
        (
            ["--disable-auto-complete-config=true"],
            "tritonserver: option '--disable-auto-complete-config' doesn't allow an argument",
        ),
    ],
)
def test_argument_that_is_no_option_is_refused(arguments, expected):
    assert refusal(*arguments) == expected


def test_option_may_be_abbreviated():
    values = parse(["--model-repo=/m", "--http-po", "7", "--disable-auto", "--"]).values

    assert values == {
        "model_repository": ["/m"],
        "http_port": "7",
        "disable_auto_complete_config": "true",
    }


@pytest.mark.parametrize("value, level", [("true", "1"), ("False", "0"), ("2", "2")])
def test_level_of_verbose_logging_may_be_a_boolean(value, level):
    assert parse([f"--log-verbose={value}"]).values == {"log_verbose": level}


def test_name_that_begins_another_is_not_ambiguous():
    assert parse(["--rate-limit=off"]).values == {"rate_limit": "off"}


@pytest.mark.parametrize(
    "argument",
    [
        "--cuda-memory-pool-byte-size=1",
        "--cuda-virtual-address-size=x:1",
        "--host-policy=x",
        "--host-policy=x,color=red",
        "--model-load-gpu-limit=0:",
    ],
)
def test_form_of_an_option_without_effect_is_checked(argument):
    name, _, value = argument.partition("=")

    assert refusal(argument) == f"{name} option format is '{BY_NAME[name[2:]].form}'. Got {value}"


@pytest.mark.parametrize(
    "argument, expected",
    [
        (
            "--allow-http=perhaps",
            "Expected true, on, 1, false, off or 0 for --allow-http, got 'perhaps'",
        ),
        ("--http-thread-count=many", "for --http-thread-count, got 'many'"),
        (
            "--grpc-infer-thread-count=1",
            "Expected an integer from 2 to 128 for --grpc-infer-thread-count, got '1'",
        ),
        ("--grpc-max-response-pool-size=0", "an integer from 1 to 2147483647"),
        ("--metrics-interval-ms=x", "for --metrics-interval-ms, got 'x'"),
        ("--trace-rate=x", "for --trace-rate, got 'x'"),
        ("--model-config-name=", "Expected text for --model-config-name, got ''"),
    ],
)
def test_value_of_the_wrong_kind_is_refused_even_without_effect(argument, expected):
    with pytest.raises(FlagError) as caught:
        ServerOptions.from_triton_config(parse([argument]).values)

    assert expected in caught.value.message
    assert caught.value.flag == argument.partition("=")[0]


@pytest.mark.parametrize("word", ["true", "ON", "1", "false", "Off", "0"])
def test_booleans_have_six_words(word):
    options = ServerOptions.from_triton_config(parse([f"--allow-http={word}"]).values)

    assert options.http.allow is (word.lower() in ("true", "on", "1"))


@pytest.mark.parametrize(
    "argument, name, value, instead",
    [
        ("--trace-file=f", "trace_config", ["triton,file=f"], "--trace-config=triton,file=f"),
        ("--trace-level=OFF", "trace_config", ["level=OFF"], "--trace-config=level=OFF"),
        ("--trace-rate=5", "trace_config", ["rate=5"], "--trace-config=rate=5"),
        ("--trace-count=-1", "trace_config", ["count=-1"], "--trace-config=count=-1"),
        (
            "--trace-log-frequency=2",
            "trace_config",
            ["triton,log-frequency=2"],
            "--trace-config=triton,log-frequency=2",
        ),
        ("--strict-model-config=1", "strict_model_config", "1", "--disable-auto-complete-config"),
        (
            "--response-cache-byte-size=5",
            "response_cache_byte_size",
            "5",
            "--cache-config=local,size=5",
        ),
    ],
)
def test_deprecated_option_works_with_a_warning(argument, name, value, instead):
    line = parse([argument])

    assert line.values == {name: value}
    assert line.warnings == [
        f"'{argument.partition('=')[0]}' has been deprecated, please use '{instead}' instead"
    ]


def test_option_without_effect_is_warned_about():
    assert parse(["--sagemaker-thread-count=4"]).warnings == [
        "--sagemaker-thread-count has no effect on this server"
    ]


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {"help"}))
def test_every_option_is_taken_by_the_server(name):
    option = BY_NAME[name]
    value = OWN_VALUES.get(name, VALUES.get(option.takes, ""))
    argument = f"--{name}={value}" if value else f"--{name}"

    values = parse([*PORTS, *NEEDS.get(name, []), argument]).values

    assert ServerOptions.from_triton_config(values)


@pytest.mark.parametrize("name", sorted(name for name, item in BY_NAME.items() if item.default))
def test_default_of_the_table_is_that_of_the_server(name):
    values = parse([f"--{name}={BY_NAME[name].default}"]).values

    given = ServerOptions.from_triton_config(values, is_command=True)
    assert given == ServerOptions.from_triton_config({}, is_command=True)


def test_names_are_unique():
    assert len(BY_NAME) == sum(map(len, SETTINGS.values()))
