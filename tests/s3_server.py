# SPDX-License-Identifier: Apache-2.0
"""An S3 server on loopback (moto), as a process of its own that can be stopped and started."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import free_ports

BUCKET = "bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret"}
ENVIRONMENT = {
    **KEYS,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
MISSING = next(
    (
        f"{package} is not installed"
        for package in ("s3fs", "moto", "boto3", "flask", "flask_cors")
        if importlib.util.find_spec(package) is None
    ),
    "",
)


class S3Server:
    """A server with one bucket, and a client of it."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self._log = folder / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, with an empty bucket. Where it is not installed, the test is skipped."""
        if MISSING:
            pytest.skip(MISSING)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
            )
        assert eventually(self._answers), self._log.read_text()
        self.client.create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def repository(self, path: str = "models") -> str:
        """The address of a repository in the bucket."""
        return f"s3://{self.address}/{BUCKET}/{path}"

    @property
    def client(self) -> Any:
        import boto3  # noqa: PLC0415  where it is missing, tests are skipped

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )

    def put(self, name: str, files: Mapping[str, str | bytes], path: str = "models") -> None:
        """Upload files of a model."""
        client = self.client
        for file, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            client.put_object(Bucket=BUCKET, Key=f"{path}/{name}/{file}", Body=data)

    def remove(self, prefix: str) -> None:
        """Remove all files whose path in the bucket begins with this."""
        client = self.client
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        for each in found:
            client.delete_object(Bucket=BUCKET, Key=each["Key"])

    def require_keys(self) -> tuple[str, str]:
        """Refuse requests from now on unless they are signed with the key that is returned."""
        import boto3  # noqa: PLC0415  where it is missing, tests are skipped

        iam = boto3.client("iam", endpoint_url=self.url, region_name="us-east-1",
                           aws_access_key_id="x", aws_secret_access_key="x")  # fmt: skip
        iam.create_user(UserName="server")
        policy = (
            '{"Version": "2012-10-17", "Statement": '
            '[{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
        )
        iam.put_user_policy(UserName="server", PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName="server")["AccessKey"]
        self._call("POST", "/moto-api/reset-auth", b"0")
        return key["AccessKeyId"], key["SecretAccessKey"]

    def requests(self) -> list[str]:
        """The lines of its log about requests."""
        return [line for line in self._log.read_text().splitlines() if " HTTP/1.1" in line]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._call("GET", "/moto-api/") < 500
        return False

    def _call(self, method: str, path: str, body: bytes | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        finally:
            connection.close()
