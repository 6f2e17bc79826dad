# SPDX-License-Identifier: Apache-2.0
"""An object store in memory, with the methods of `fsspec` that are used, and with failures."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.repository.scene import CODE, CONFIG

ROOT = "bucket/models"
ADDRESS = f"s3://{ROOT}"
_tags = itertools.count(1)


class FakeObjects:
    """Files by their whole path."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.failure: Exception | None = None  # of every request
        self.failures: dict[str, list[Exception]] = {}  # of downloads, by path in the repository
        self.gates: dict[str, threading.Event] = {}  # downloads wait for them
        self.requests: Counter[str] = Counter()
        self.downloads: list[str] = []
        self.access: Any = None

    def open(self, location: Any, access: Any) -> FakeObjects:
        self.access = access
        return self

    # What a test does

    def put(self, path: str, content: str | bytes = CODE) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.objects[f"{ROOT}/{path}"] = (data, str(next(_tags)))

    def put_model(self, name: str = "m", config: str | None = CONFIG, versions=("1",)) -> None:
        if config is not None:
            self.put(f"{name}/config.pbtxt", config)
        for version in versions:
            self.put(f"{name}/{version}/model.py")

    def remove(self, prefix: str) -> None:
        whole = f"{ROOT}/{prefix}"
        self.objects = {
            path: each for path, each in self.objects.items() if not path.startswith(whole)
        }

    # What the server asks

    def ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        self._answer("ls")
        names = {key.removeprefix(f"{path}/").split("/")[0] for key in self._below(path)}
        if not names:
            raise FileNotFoundError(path)
        return [{"name": f"{path}/{name}", "type": "directory"} for name in names]

    def exists(self, path: str) -> bool:
        self._answer("exists")
        return bool(self._below(path))

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        self._answer("find")
        return {
            key: {"size": len(self.objects[key][0]), "ETag": self.objects[key][1]}
            for key in self._below(path)
        }

    def get_file(self, path: str, target: str, callback: Any) -> None:
        self._answer("get")
        inner = path.removeprefix(f"{ROOT}/")
        self.downloads.append(inner)
        if gate := self.gates.get(inner):
            while not gate.wait(0.001):
                callback.relative_update(1)
        if failures := self.failures.get(inner):
            Path(target).write_bytes(b"half")
            raise failures.pop(0)
        if path not in self.objects:
            raise FileNotFoundError(path)
        Path(target).write_bytes(self.objects[path][0])

    def _answer(self, what: str) -> None:
        self.requests[what] += 1
        if self.failure is not None:
            raise self.failure

    def _below(self, path: str) -> list[str]:
        return [key for key in self.objects if key.startswith(f"{path}/")]
