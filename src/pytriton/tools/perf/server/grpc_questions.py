# SPDX-License-Identifier: Apache-2.0
"""Questions over gRPC, by the official client."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pytriton.tools.perf.load.plan import Tls
from pytriton.tools.perf.server.questions import QuestionError, ServerAddress


class GrpcQuestions:
    """Asks over one channel."""

    def __init__(self, address: ServerAddress) -> None:
        self._headers = dict(address.headers)
        self._address = address
        self._opened: Any = None

    @property
    def _client(self) -> Any:
        if self._opened is None:
            address = self._address
            credentials = _credentials(address.tls or Tls()) if address.is_encrypted else None
            self._opened = tritonclient.grpc.InferenceServerClient(
                address.host_and_port, creds=credentials
            )
        return self._opened

    def server_metadata(self) -> Mapping[str, Any]:
        return self._ask(lambda: self._client.get_server_metadata(self._headers, as_json=True))

    def model_metadata(self, model: str, version: str = "") -> Mapping[str, Any]:
        return self._ask(
            lambda: self._client.get_model_metadata(model, version, self._headers, as_json=True)
        )

    def model_config(self, model: str, version: str = "") -> Mapping[str, Any]:
        found = self._ask(
            lambda: self._client.get_model_config(model, version, self._headers, as_json=True)
        )
        config: Mapping[str, Any] = found.get("config") or {}
        return config

    def statistics(self, model: str, version: str = "") -> Sequence[Mapping[str, Any]]:
        found = self._ask(
            lambda: self._client.get_inference_statistics(
                model, version, self._headers, as_json=True
            )
        )
        return list(found.get("model_stats") or [])

    def update_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        self._ask(lambda: self._client.update_trace_settings("", dict(settings), self._headers))

    def load(self, model: str, config: str | None = None) -> None:
        self._ask(lambda: self._client.load_model(model, self._headers, config=config))

    def unload(self, model: str) -> None:
        self._ask(lambda: self._client.unload_model(model, self._headers))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _ask(self, ask: Callable[[], Any]) -> Mapping[str, Any]:
        try:
            answer = ask()
        except InferenceServerException as error:
            raise QuestionError(str(error.message())) from error
        return answer if isinstance(answer, dict) else {}


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_file),
        private_key=_read(tls.key_file),
        certificate_chain=_read(tls.certificate_file),
    )


def _read(path: str | None) -> bytes | None:
    return None if path is None else pathlib.Path(path).read_bytes()
