# SPDX-License-Identifier: Apache-2.0
"""The settings about a Ray cluster, as flags and fields give them."""

from __future__ import annotations

import pytest

from pytriton.base.settings import RayOptions
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.server_options import ServerOptions


def ray_of(**flags: object) -> RayOptions:
    return ServerOptions.from_triton_config(flags).ray


def test_nothing_given_leaves_all_to_ray():
    assert ray_of() == RayOptions()


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00::1", "gpu-server", "gpu.example.com"])
def test_instance_address_is_a_name_or_an_ip_address(address):
    assert ray_of(ray_instance_address=address).instance_address == address


@pytest.mark.parametrize("address", ["head:6379", "[::1]:6379", "ray://head:10001", "auto"])
def test_address_is_that_of_a_cluster_or_auto(address):
    assert ray_of(ray_address=address).address == address


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:six", "head:0", "head:70000"])
def test_address_without_host_or_port_is_refused(address):
    with pytest.raises(PyTritonValidationError) as caught:
        ray_of(ray_address=address)

    expected = "Expected <host>:<port>, ray://<host>:<port> or auto for --ray-address"
    assert caught.value.message == f"{expected}, got {address!r}"


@pytest.mark.parametrize("address", ["10.1.2.3:5000", "tcp://host", "a b", "-x"])
def test_instance_address_of_another_form_is_refused(address):
    with pytest.raises(PyTritonValidationError) as caught:
        ray_of(ray_instance_address=address)

    assert "--ray-instance-address" in caught.value.message
    assert "name or IP address of this machine, without a port" in caught.value.message
    assert address in caught.value.message


def test_working_dir_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()

    assert ray_of(ray_working_dir="code").working_dir == str(tmp_path / "code")
    assert ray_of(ray_working_dir="s3://b/code.zip").working_dir == "s3://b/code.zip"


def test_working_dir_that_does_not_exist_is_refused():
    with pytest.raises(PyTritonValidationError, match="--ray-working-dir") as caught:
        ray_of(ray_working_dir="/does/not/exist")

    assert "a folder of this machine" in caught.value.message


@pytest.mark.parametrize(
    "flags, part",
    [
        ({"executor": "kubernetes"}, "expected one of local, ray, got 'kubernetes'"),
        ({"ray_instance_port": 70000}, "an integer from 0 to 65535"),
        ({"ray_start_timeout": 0}, "a number greater than 0"),
        ({"ray_address": ""}, "text"),
    ],
)
def test_wrong_value_is_refused_in_words(flags, part):
    with pytest.raises(PyTritonValidationError) as caught:
        ray_of(**flags)

    assert part in caught.value.message
