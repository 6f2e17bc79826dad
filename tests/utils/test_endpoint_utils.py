# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.base.triton_config import TritonConfig
from pytriton.utils.endpoint_utils import get_endpoint


@pytest.mark.parametrize(
    "endpoint, expected",
    [
        ("http", "http://127.0.0.1:8000"),
        ("grpc", "grpc://127.0.0.1:8001"),
        ("metrics", "http://127.0.0.1:8002"),
    ],
)
def test_default_endpoint_is_local(endpoint, expected):
    assert get_endpoint(TritonConfig(), endpoint) == expected


@pytest.mark.parametrize("address", ["0.0.0.0", "0.00.00.000", "", "::"])
def test_any_address_is_reached_over_loopback(address):
    assert get_endpoint(TritonConfig(http_address=address), "http") == "http://127.0.0.1:8000"


def test_configured_address_and_port_are_kept():
    config = TritonConfig(http_address="10.0.0.1", http_port=1, grpc_port=2, metrics_port=3)

    assert get_endpoint(config, "http") == "http://10.0.0.1:1"
    assert get_endpoint(config, "grpc") == "grpc://127.0.0.1:2"
    assert get_endpoint(config, "metrics") == "http://10.0.0.1:3"


def test_metrics_address_of_its_own_wins():
    config = TritonConfig(http_address="10.0.0.1", metrics_address="10.0.0.2")

    assert get_endpoint(config, "metrics") == "http://10.0.0.2:8002"


def test_scheme_says_that_an_endpoint_is_encrypted():
    everything = TritonConfig(tls_cert="cert.pem", tls_key="key.pem")
    only_grpc = TritonConfig(grpc_use_ssl=True)

    assert get_endpoint(everything, "http") == "https://127.0.0.1:8000"
    assert get_endpoint(everything, "grpc") == "grpcs://127.0.0.1:8001"
    assert get_endpoint(everything, "metrics") == "https://127.0.0.1:8002"
    assert get_endpoint(only_grpc, "http") == "http://127.0.0.1:8000"
    assert get_endpoint(only_grpc, "grpc") == "grpcs://127.0.0.1:8001"
