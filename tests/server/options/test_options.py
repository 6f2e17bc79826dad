# SPDX-License-Identifier: Apache-2.0
"""From the flags and fields that users know to the server's settings."""

from __future__ import annotations

import logging
import pathlib

import msgspec
import pytest

from pytriton.base.messages import InferRequest
from pytriton.base.sandbox import Grants, SandboxChoice, SandboxSettings
from pytriton.base.settings import RayOptions
from pytriton.base.triton_config import TritonConfig
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.engine.rate_limiter import RateLimitResource
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.api.header_forwarding import HeaderForwarding
from pytriton.serving.server.api.origins import BrowserOptions
from pytriton.serving.server.options.endpoints import EndpointOptions, Surroundings, VertexAiOptions
from pytriton.serving.server.options.metrics_options import MetricsOptions
from pytriton.serving.server.options.repository_options import RepositoryOptions
from pytriton.serving.server.options.server_options import (
    AccessLogOptions,
    AccessOptions,
    ClientLimits,
    KeepaliveOptions,
    LogOptions,
    PageOptions,
    ServerOptions,
    ShadowOptions,
    TlsOptions,
)

options_from = ServerOptions.from_triton_config


def refusal(**config: object) -> str:
    with pytest.raises(PyTritonValidationError) as caught:
        options_from(config)
    return caught.value.message


def test_empty_config_gives_tritons_defaults():
    options = options_from(TritonConfig().to_dict())

    assert options == ServerOptions(
        limits=ClientLimits(http_max_input_bytes=2**31 - 1),
        allow_client_shared_memory=True,
        landing_page="all",
    )
    assert options.http == EndpointOptions(port=8000, address="0.0.0.0", allow=True)
    assert (options.grpc.port, options.metrics.port) == (8001, 8002)
    assert (options.id, options.exit_timeout_s, options.strict_readiness) == ("triton", 30, True)


def test_every_field_of_triton_config_has_its_place(tmp_path):
    config = TritonConfig(
        model_repository=pathlib.Path("models"),
        id="me",
        log_verbose=2,
        log_file=pathlib.Path("server.log"),
        log_format="json",
        access_log=pathlib.Path("access.log"),
        access_log_format="json",
        access_log_health=False,
        access_log_fields=["worker_s,queue_s"],
        shadow_url="grpc://other:8001",
        shadow_share=0.5,
        shadow_models=["m"],
        shadow_rtol=0.01,
        shadow_atol=0.1,
        exit_timeout_secs=5,
        exit_on_error=False,
        strict_readiness=False,
        allow_http=True,
        http_address="127.0.0.1",
        http_port=1,
        http_header_forward_pattern="x-.*",
        http_max_input_size=16,
        http_thread_count=3,
        http_restricted_api="trace:k=v",
        allow_grpc=False,
        grpc_address="::1",
        grpc_port=2,
        grpc_header_forward_pattern="y-.*",
        grpc_infer_allocation_pool_size=4,
        grpc_use_ssl=True,
        grpc_use_ssl_mutual=True,
        grpc_server_cert=pathlib.Path("cert.pem"),
        grpc_server_key=pathlib.Path("key.pem"),
        grpc_root_cert=pathlib.Path("root.pem"),
        grpc_infer_response_compression_level="low",
        grpc_keepalive_time=11,
        grpc_keepalive_timeout=12,
        grpc_keepalive_permit_without_calls=True,
        grpc_http2_max_pings_without_data=13,
        grpc_http2_min_recv_ping_interval_without_data=14,
        grpc_http2_max_ping_strikes=15,
        grpc_restricted_protocol="logging:l=w",
        secure=False,
        hide_exceptions=True,
        auth_config=pathlib.Path("auth.toml"),
        tls_cert=pathlib.Path("tls.pem"),
        tls_key=pathlib.Path("tls.key"),
        tls_client_ca=pathlib.Path("ca.pem"),
        tls_client_auth="optional",
        tls_min_version="1.3",
        allow_metrics=False,
        allow_gpu_metrics=False,
        allow_cpu_metrics=False,
        metrics_interval_ms=100,
        metrics_port=3,
        metrics_address="127.0.0.2",
        allow_sagemaker=True,
        sagemaker_port=4,
        sagemaker_safe_port_range="1-6",
        sagemaker_thread_count=5,
        allow_vertex_ai=True,
        vertex_ai_port=6,
        vertex_ai_thread_count=7,
        vertex_ai_default_model="m",
        metrics_config=["counter_latencies=false"],
        trace_config=["triton,file=t.json", "rate=7"],
        cache_config=["local,size=1048576"],
        cache_directory="caches",
        buffer_manager_thread_count=8,
        backend_directory=pathlib.Path("backends"),
        backend_config=["mine,a=b"],
        rate_limit="execution_count",
        rate_limit_resource=["R:4"],
        landing_page="none",
        allow_page=False,
        page_token="hush",
        frontend_processes=9,
        allow_client_shm=True,
        executor="ray",
        ray_address="head:6379",
        ray_instance_address="10.0.0.1",
        ray_instance_port=7,
        ray_working_dir=tmp_path,
        ray_start_timeout=60.5,
        sandbox="on,network",
        sandbox_allow=["off"],
        cors_allow_origins=["https://App.example.com:443, http://localhost:*"],
        cors_allow_headers=["X-Tenant"],
        cors_allow_credentials=True,
        cors_max_age_secs=5,
        allowed_hosts=["Models.example.com"],
        max_connections_per_address=6,
        max_request_memory=7,
        trusted_proxies=["10.0.0.0/8, 127.0.0.1"],
    ).to_dict()

    assert None not in config.values()
    assert options_from(config) == ServerOptions(
        id="me",
        trusted_proxies=("10.0.0.0/8", "127.0.0.1/32"),
        http=EndpointOptions(address="127.0.0.1", port=1),
        grpc=EndpointOptions(address="::1", port=2, allow=False),
        metrics=EndpointOptions(address="127.0.0.2", port=3, allow=False),
        sagemaker=EndpointOptions(port=4),
        vertex_ai=EndpointOptions(port=6),
        vertex_ai_options=VertexAiOptions(default_model="m"),
        http_restricted=(RestrictedGroup(apis=("trace",), header="k", value="v"),),
        grpc_restricted=(RestrictedGroup(apis=("logging",), header="l", value="w"),),
        http_header_forward_pattern="x-.*",
        grpc_header_forward_pattern="y-.*",
        tls=TlsOptions(
            server_cert="tls.pem",
            server_key="tls.key",
            root_cert="ca.pem",
            client_auth="optional",
            min_version="1.3",
        ),
        grpc_tls=TlsOptions(
            server_cert="cert.pem",
            server_key="key.pem",
            root_cert="root.pem",
            client_auth="required",
            min_version="1.3",
        ),
        grpc_keepalive=KeepaliveOptions(
            time_ms=11,
            timeout_ms=12,
            permit_without_calls=True,
            max_pings_without_data=13,
            min_recv_ping_interval_without_data_ms=14,
            max_ping_strikes=15,
        ),
        grpc_response_compression="low",
        log=LogOptions(verbose=2, file="server.log", format="json"),
        hide_exceptions=True,
        access=AccessOptions(config="auth.toml"),
        access_log=AccessLogOptions(
            principal=True,
            file="access.log",
            format="json",
            health=False,
            fields=("worker_s", "queue_s"),
        ),
        shadow=ShadowOptions(
            url="grpc://other:8001", share=0.5, models=("m",), rtol=0.01, atol=0.1
        ),
        metrics_options=MetricsOptions(
            cpu=False, gpu=False, interval_ms=100.0, counter_latencies=False
        ),
        limits=ClientLimits(
            http_max_input_bytes=16, max_connections_per_address=6, max_request_memory_bytes=7
        ),
        browsers=BrowserOptions(
            allow_origins=("https://app.example.com", "http://localhost:*"),
            allow_headers=("x-tenant",),
            allow_credentials=True,
            max_age_s=5,
            allowed_hosts=("models.example.com",),
        ),
        repository=RepositoryOptions(
            paths=("models",),
            backend_directory="backends",
            backend_config={"mine": {"a": "b"}},
            rate_limit=True,
            rate_limit_resources=(RateLimitResource(name="R", count=4),),
            executor="ray",
        ),
        sandbox=SandboxSettings(
            default=SandboxChoice("on", Grants(has_network=True)), allows_off=True
        ),
        ray=RayOptions(
            address="head:6379",
            instance_address="10.0.0.1",
            instance_port=7,
            working_dir=str(tmp_path),
            start_timeout_s=60.5,
        ),
        exit_on_error=False,
        exit_timeout_s=5,
        strict_readiness=False,
        cache_bytes=1048576,
        trace_settings=("triton,file=t.json", "rate=7"),
        page=PageOptions(allow=False, token="hush"),
        landing_page="none",
        frontend_processes=9,
        allow_client_shared_memory=True,
    )


def test_options_cross_a_process_unchanged():
    options = options_from(
        {"http_restricted_api": "trace:k=v", "grpc_use_ssl": True}
        | {"grpc_server_cert": "c", "grpc_server_key": "k"}
    )

    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=ServerOptions)

    assert copy == options


def test_secret_is_not_in_the_representation():
    options = options_from({"http_restricted_api": "trace:k=hush", "grpc_restricted_protocol": ()})

    assert options.http_restricted[0].value == "hush"
    assert "hush" not in repr(options)


def test_token_of_the_page_is_not_in_the_representation():
    options = options_from({"page_token": "hush"})

    assert options.page.token == "hush"
    assert "hush" not in repr(options)
    assert "hush" not in repr(TritonConfig(page_token="hush"))


@pytest.mark.parametrize(
    "values, variables, token",
    [
        ({}, {}, ""),
        ({"page_token": "flag"}, {"PYTRITON_PAGE_TOKEN": "variable"}, "flag"),
        ({}, {"PYTRITON_PAGE_TOKEN": "variable"}, "variable"),
        ({"http_restricted_api": "trace:Triton-Access-Token=access"}, {}, "access"),
        ({"http_restricted_api": "trace:other=access"}, {}, ""),
    ],
)
def test_token_of_the_page_is_the_first_that_is_given(values, variables, token):
    around = Surroundings(variables=variables)

    assert ServerOptions.from_triton_config(values, surroundings=around).page.token == token


def test_token_of_the_page_must_fit_into_a_header():
    with pytest.raises(PyTritonValidationError, match="Expected ASCII characters for --page-token"):
        options_from({"page_token": "hüsh"})


def test_page_needs_the_metrics_port():
    assert options_from({}).has_page
    assert not options_from({"allow_metrics": False}).has_page
    assert not options_from({"allow_page": "off"}).has_page


def test_flags_may_come_as_text():
    options = options_from({"http_port": "9000", "allow_grpc": "OFF", "strict_readiness": "1"})

    assert options.http.port == 9000
    assert not options.grpc.allow
    assert options.strict_readiness


def test_metrics_listen_where_http_does_by_default():
    assert options_from({"http_address": "127.0.0.1"}).metrics.address == "127.0.0.1"


def test_body_limit_is_a_flag_with_a_default_for_each_kind_of_server():
    assert options_from({}, is_command=True).limits.http_max_input_bytes == 67108864
    assert options_from({"http_max_input_size": 5}).limits.http_max_input_bytes == 5


def test_idle_http_connections_are_kept_for_an_hour_or_as_long_as_is_said():
    assert options_from({}).limits.http_idle_timeout_s == 3600
    assert options_from({"http_idle_timeout_secs": 0.5}).limits.http_idle_timeout_s == 0.5


@pytest.mark.parametrize(
    "config,expected",
    [
        (
            {"http_port": "abc"},
            "Expected an integer from 0 to 65535 for --http-port, got 'abc'",
        ),
        ({"grpc_port": 65536}, "Expected an integer from 0 to 65535 for --grpc-port, got 65536"),
        (
            {"allow_http": "perhaps"},
            "Expected true, on, 1, false, off or 0 for --allow-http, got 'perhaps'",
        ),
        ({"log_verbose": True}, "for --log-verbose, got True"),
        ({"id": ""}, "Expected text for --id, got ''"),
        ({"id": 7}, "Expected text for --id, got 7"),
        (
            {"metrics_interval_ms": -1},
            "Expected a number greater than 0 for --metrics-interval-ms, got -1",
        ),
        ({"metrics_interval_ms": "soon"}, "a number greater than 0"),
        (
            {"grpc_infer_response_compression_level": "mad"},
            (
                "invalid argument for --grpc-infer-response-compression-level: "
                "expected one of none, low, medium, high, got 'mad'"
            ),
        ),
        ({"http_header_forward_pattern": "("}, "a regular expression"),
        ({"http_header_forward_pattern": "(?U)x"}, "a regular expression"),
        ({"http_max_input_size": 0}, "Error: --http-max-input-size must be greater than 0."),
        ({"http_max_input_size": -1}, "Error: --http-max-input-size must be greater than 0."),
        ({"exit_grace_secs": -1}, "Expected a number of at least 0 for --exit-grace-secs, got -1"),
        (
            {"trace_config": ["foo"]},
            "--trace-config option format is '<trace mode>,<setting>=<value>'. Got foo",
        ),
        ({"trace_config": 5}, "Expected a list of texts for --trace-config, got 5"),
        ({"metrics_config": ["foo"]}, "option format is <setting>=<value>. Got foo"),
        ({"metrics_config": ["counter_latencies=maybe"]}, "for --counter-latencies, got 'maybe'"),
        ({"htpp_port": 1, "x": 2}, "Expected flags of the server, got --htpp-port, --x"),
        ({"http_restricted_api": "foo:k=v"}, "unknown restricted api 'foo' "),
        ({"grpc_use_ssl": True}, "for --grpc-server-cert, got None"),
        (
            {"grpc_use_ssl_mutual": True, "grpc_server_cert": "c", "grpc_server_key": "k"},
            "for --grpc-root-cert, got None",
        ),
        ({"tls_cert": "c"}, "Expected a PEM file, as --tls-cert is given, for --tls-key, got None"),
        ({"tls_key": "k"}, "a PEM file, as --tls-key is given, for --tls-cert, got None"),
        ({"tls_client_ca": "a"}, "a PEM file, as --tls-client-ca is given, for --tls-cert"),
        (
            {"tls_cert": "c", "tls_key": "k", "tls_client_auth": "optional"},
            "a PEM file, as --tls-client-auth is given, for --tls-client-ca, got None",
        ),
        ({"tls_min_version": "1.1"}, "expected one of 1.2, 1.3, got '1.1'"),
        ({"tls_client_auth": "none"}, "expected one of required, optional, got 'none'"),
    ],
)
def test_bad_value_is_refused_by_name(config, expected):
    assert expected in refusal(**config)


def test_unknown_trace_setting_is_warned_about(caplog):
    settings = ["triton,fil=t.json", "level=OFF", "opentelemetry,url=http://host", "rates=1"]
    with caplog.at_level(logging.WARNING, "pytriton"):
        assert options_from({"trace_config": settings}).trace_settings == tuple(settings)

    messages = [
        record.getMessage().split("; known are mode level ")[0] for record in caplog.records
    ]
    assert messages == [
        "--trace-config triton,fil has no effect",
        "--trace-config rates has no effect",
    ]


@pytest.mark.parametrize(
    "config,expected",
    [
        ({"http_port": 7, "grpc_port": 7}, "HTTP requests and GRPC requests"),
        ({"http_port": 7, "metrics_port": 7}, "HTTP requests and metrics requests"),
        ({"grpc_port": 7, "metrics_port": 7}, "GRPC requests and metrics requests"),
    ],
)
def test_endpoints_cannot_share_a_port(config, expected):
    assert refusal(**config) == (
        f"The server cannot listen to {expected} at the same address and port 0.0.0.0:7"
    )


def test_endpoints_may_share_a_port_that_is_not_used():
    options = options_from({"http_port": 0, "grpc_port": 0, "metrics_port": 7, "allow_http": False})

    assert (options.http.port, options.grpc.port) == (0, 0)


@pytest.mark.parametrize(
    "config,expected",
    [
        (
            ["size=5"],
            (
                "No cache specified. --cache-config option format is "
                "<cache name>,<setting>=<value>. Got size=5"
            ),
        ),
        (
            ["local,size=5", "redis,host=h"],
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (["redis,password=hush"], "for --cache-config, got 'redis,password=...'"),
        (["local,size=5", "local,size2=5"], "got 'local,size=... local,size2=...'"),
        (["local,size=big"], "Expected a number of bytes as size for --cache-config, got 'big'"),
        (["local,size=0"], "got '0'"),
    ],
)
def test_bad_cache_is_refused(config, expected):
    assert expected in refusal(cache_config=config)


def test_cache_has_one_size():
    assert options_from({"response_cache_byte_size": 7}).cache_bytes == 7
    assert refusal(response_cache_byte_size=7, cache_config=["local,size=7"]) == (
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
        "Please provide one or the other."
    )


@pytest.mark.parametrize(
    "pattern, forwarded, others",
    [
        ("(?-i)MY_HEADER.*", ["MY_HEADER_1", "X-MY_HEADER"], ["my_header_1", "My_Header"]),
        ("(?-i)a|b", ["a", "b"], ["A", "B"]),
        ("(?i)a", ["a", "A"], ["b"]),
        ("(?s-i)(?m)a", ["a"], ["A"]),
        ("x-.*", ["x-a", "X-A"], ["a"]),
    ],
)
@pytest.mark.parametrize("flag", ["http_header_forward_pattern", "grpc_header_forward_pattern"])
def test_flags_in_a_pattern_of_headers_mean_what_they_mean_in_triton(
    flag, pattern, forwarded, others
):
    options = ServerOptions.from_triton_config({flag: pattern})
    request = InferRequest("model", {})
    forwarding = HeaderForwarding(getattr(options, flag))

    forwarding.apply([(name.encode(), b"1") for name in (*forwarded, *others)], request)

    assert list(request.fields.parameters) == forwarded


def test_key_of_own_processes_is_not_in_the_representation():
    options = ServerOptions(access=AccessOptions(config="auth.toml", own_key="hush"))

    assert "hush" not in repr(options)
    assert "auth.toml" in repr(options)


def test_names_are_not_public_with_a_policy():
    assert not options_from({"auth_config": "auth.toml"}).names_are_public


def test_trusted_proxies_that_are_none_are_refused():
    with pytest.raises(PyTritonValidationError, match="--trusted-proxies: expected addresses and"):
        options_from({"trusted_proxies": ["10.0.0.0/8", "proxy"]})


def test_server_without_trusted_proxies_looks_for_none():
    assert options_from({}).proxies is None
