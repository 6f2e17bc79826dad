# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_ServerModel...: questions on single models of a server."""

from __future__ import annotations

from pytriton.base.errors import InvalidArgumentError
from pytriton.inprocess.c_library.servers import CallerServers, version_text
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import put_bool, put_half_word, put_word, required_text
from pytriton.runtime.native_backend.server_objects import Documents

_UNKNOWN_BATCHING, _FIRST_DIM = 1, 2  # of TRITONSERVER_ModelBatchFlag
_ONE_TO_ONE, _DECOUPLED = 1, 2  # of TRITONSERVER_ModelTxnPropertyFlag
_CONFIG_VERSION = 1


class ServedModelFunctions:
    """Answers of servers on their models."""

    def __init__(self, servers: CallerServers, documents: Documents) -> None:
        self._servers = servers
        self._documents = documents

    @export("TRITONSERVER_ServerModelIsReady")
    def _is_ready(self, server: int, name: bytes | None, version: int, place: int) -> None:
        engine = self._servers.engine(server)
        put_bool(place, engine.is_model_ready(required_text(name), version_text(version)))

    @export("TRITONSERVER_ServerModelBatchProperties")
    def _batching(
        self, server: int, name: bytes | None, version: int, place: int, further: int
    ) -> None:
        _put_nothing(further)
        model = self._servers.find(server, required_text(name), version)
        put_half_word(place, _FIRST_DIM if model.spec.max_batch_size else _UNKNOWN_BATCHING)

    @export("TRITONSERVER_ServerModelTransactionProperties")
    def _transactions(
        self, server: int, name: bytes | None, version: int, place: int, further: int
    ) -> None:
        _put_nothing(further)
        put_half_word(place, 0)
        model = self._servers.find(server, required_text(name), version)
        put_half_word(place, _DECOUPLED if model.spec.decoupled else _ONE_TO_ONE)

    @export("TRITONSERVER_ServerModelMetadata")
    def _metadata(self, server: int, name: bytes | None, version: int, place: int) -> None:
        engine = self._servers.engine(server)
        metadata = engine.model_metadata(required_text(name), version_text(version))
        put_word(place, self._documents.new(metadata))

    @export("TRITONSERVER_ServerModelStatistics")
    def _statistics(self, server: int, name: bytes | None, version: int, place: int) -> None:
        engine = self._servers.engine(server)
        statistics = engine.model_statistics(required_text(name), version_text(version))
        put_word(place, self._documents.new(statistics))

    @export("TRITONSERVER_ServerModelConfig")
    def _config(
        self, server: int, name: bytes | None, version: int, config_version: int, place: int
    ) -> None:
        engine = self._servers.engine(server)
        config = engine.model_config(required_text(name), version_text(version))
        if config_version != _CONFIG_VERSION:
            raise InvalidArgumentError(
                f"model configuration version {config_version} not supported, supported versions "
                f"are: {_CONFIG_VERSION}"
            )
        put_word(place, self._documents.new(config))


def _put_nothing(place: int) -> None:
    """Write NULL where data of flags would be that do not exist yet, if there is such a place."""
    if place:
        put_word(place, 0)
