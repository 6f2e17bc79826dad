# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.repository.remote.location import (
    choose_access,
    read_credentials,
    read_location,
)

S3_FIRST = {"key_id": "id1", "secret_key": "secret1", "region": "eu-west-1", "session_token": ""}
S3_SECOND = {"key_id": "id2", "secret_key": "secret2", "session_token": "token2", "profile": "p"}
FILE = {
    "s3": {
        "": S3_FIRST,
        "s3://bucket": S3_SECOND,
        "s3://bucket/only": {"profile": "deep"},
        "s3://https://host:9": {"key_id": "id3", "secret_key": "secret3"},
    },
    "gs": {"": "/first.json", "gs://bucket-2": "/second.json"},
    "as": {
        "": {"account_str": "named", "account_key": "key1"},
        "as://mi/c": {"auth_type": "managed_identity", "client_id": "client"},
        "as://default/c": {"auth_type": "default", "account_key": "unused"},
        "as://odd/c": {"auth_type": "password"},
    },
}


def access(address, credentials=FILE, **environment):
    return choose_access(read_location(address), credentials, environment)


@pytest.mark.parametrize(
    "address, options",
    [
        ("s3://other/m", {"key": "id1", "secret": "secret1",
                          "client_kwargs": {"region_name": "eu-west-1"}}),
        ("s3://bucket/m", {"key": "id2", "secret": "secret2", "token": "token2"}),
        ("s3://bucket/only/m", {"profile": "deep"}),
        ("s3://https://host:9/b", {"key": "id3", "secret": "secret3",
                                   "endpoint_url": "https://host:9",
                                   "config_kwargs": {"s3": {"addressing_style": "path"}}}),
        ("gs://bucket-1", {"token": "/first.json"}),
        ("gs://bucket-2/m", {"token": "/second.json"}),
        ("as://account/c", {"account_name": "named", "account_key": "key1"}),
    ],
)  # fmt: skip
def test_credential_with_the_longest_name_that_fits_is_taken(address, options):
    assert access(address).options == options


def test_environment_counts_without_a_credential_file():
    # The AWS library reads its own variables, so only the region is passed on.
    s3 = access("s3://bucket", None, AWS_ACCESS_KEY_ID="id", AWS_DEFAULT_REGION="eu-central-1")
    azure = access("as://a/c", None, AZURE_STORAGE_ACCOUNT="name", AZURE_STORAGE_KEY="key")

    assert s3.options == {"client_kwargs": {"region_name": "eu-central-1"}}
    assert azure.options == {"account_name": "name", "account_key": "key"}
    assert access("gs://bucket", None).options == {}


def test_environment_counts_for_an_address_that_no_credential_fits():
    credentials = {"s3": {"s3://other": S3_FIRST}}

    assert access("s3://bucket", credentials).options == {}


def test_azure_host_and_kinds_of_authentication():
    assert access("as://acc.blob.core.windows.net/c", None).options == {
        "account_name": "acc",
        "account_host": "acc.blob.core.windows.net",
        "anon": False,
    }
    assert access("as://mi/c").identity == "client"
    assert access("as://default/c").options == {"account_name": "default", "anon": False}
    with pytest.raises(InvalidArgumentError, match=r"managed_identity or default.*'password'"):
        access("as://odd/c")


def test_access_does_not_show_its_secrets():
    one = access("s3://bucket")

    assert set(one.secrets) == {"id2", "secret2", "token2"}
    assert not any(secret in repr(one) for secret in one.secrets)


def test_no_file_is_read_if_the_environment_names_none():
    assert read_credentials({}) is None
    assert read_credentials({"TRITON_CLOUD_CREDENTIAL_PATH": ""}) is None


def test_credential_file_is_read(tmp_path):
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(FILE))

    assert read_credentials({"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}) == FILE


@pytest.mark.parametrize(
    "text, problem",
    [
        ('{"s3": hunter2', "is not JSON: line 1 column 8"),
        ('["hunter2"]', "must be a JSON object with the members s3, gs and as"),
        ('{"s3": "hunter2"}', "member 's3' must be a JSON object"),
        ('{"s3": {"": "hunter2"}}', "credential '' must be a JSON object"),
        ('{"gs": {"gs://x": {"a": "hunter2"}}}', "credential 'gs://x' must be the path of a file"),
        ('{"as": {"": {"account_key": ["hunter2"]}}}', "member 'account_key' must be a text"),
    ],
)
def test_wrong_credential_file_is_refused_without_repeating_it(tmp_path, text, problem):
    path = tmp_path / "credentials.json"
    path.write_text(text)

    with pytest.raises(InvalidArgumentError) as caught:
        read_credentials({"TRITON_CLOUD_CREDENTIAL_PATH": str(path)})

    assert problem in caught.value.message
    assert str(path) in caught.value.message
    assert "hunter2" not in caught.value.message


def test_missing_credential_file_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        read_credentials({"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "none")})
