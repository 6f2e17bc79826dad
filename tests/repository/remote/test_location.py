# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.repository.remote.location import is_remote, read_location


@pytest.mark.parametrize(
    "path, address, root, endpoint, account",
    [
        ("s3://bucket", "s3://bucket", "bucket", "", ""),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "bucket/a/b", "", ""),
        ("s3://bucket//a", "s3://bucket/a", "bucket/a", "", ""),
        ("s3://h.x:9/b/m", "s3://h.x:9/b/m", "b/m", "http://h.x:9", ""),
        ("s3://127.0.0.1:9/b", "s3://127.0.0.1:9/b", "b", "http://127.0.0.1:9", ""),
        ("s3://[::1]:9/b", "s3://[::1]:9/b", "b", "http://[::1]:9", ""),
        ("s3://http://h:9/b/m", "s3://http://h:9/b/m", "b/m", "http://h:9", ""),
        ("s3://https://h:9/b/m", "s3://https://h:9/b/m", "b/m", "https://h:9", ""),
        ("s3://https://h/b", "s3://https://h/b", "b", "https://h", ""),
        ("gs://bucket/m", "gs://bucket/m", "bucket/m", "", ""),
        ("as://account/container/m", "as://account/container/m", "container/m", "", "account"),
    ],
)
def test_location_is_read_from_every_form_of_an_address(path, address, root, endpoint, account):
    location = read_location(path)

    assert is_remote(path)
    assert (location.address, location.root) == (address, root)
    assert (location.endpoint, location.account) == (endpoint, account)


@pytest.mark.parametrize("path", ["s3://bucket/m", "s3://https://host:9/b/m", "gs://b/m"])
def test_location_is_the_same_if_the_address_went_through_a_path(path):
    assert read_location(str(pathlib.Path(path))) == read_location(path)


@pytest.mark.parametrize(
    "path", ["/models", "models", "./s3:", "s3", "http://host/models", "s3x://b"]
)
def test_local_path_is_not_remote(path):
    assert not is_remote(path)
    with pytest.raises(InvalidArgumentError, match="an address of an object store"):
        read_location(path)


@pytest.mark.parametrize(
    "path",
    ["s3://", "s3:///", "s3://host:9/", "s3://https://host:9", "s3://b/../c", "s3://b/./c",
     "gs://", "gs://../x", "as://account", "as://account/", "as://a/c/.."],
)  # fmt: skip
def test_location_without_a_bucket_or_with_steps_up_is_refused(path):
    with pytest.raises(InvalidArgumentError, match="of the form") as caught:
        read_location(path)

    assert caught.value.message.endswith(f"got '{path}'")


@pytest.mark.parametrize("bucket", ["bucket", ""])
def test_location_with_a_password_is_refused_without_repeating_it(bucket):
    with pytest.raises(InvalidArgumentError) as caught:
        read_location(f"s3://https://user:hunter2@host:9/{bucket}")

    assert "no user or password" in caught.value.message
    assert "hunter2" not in caught.value.message
