# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Server...: what a backend asks the server about models, and their loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError, error_from_code
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import put_bool, put_half_word, put_word, required_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.native_backend.server_objects import (
        CallerParameter,
        Documents,
        Parameters,
    )

_UNKNOWN_BATCHING, _FIRST_DIM = 1, 2  # of TRITONSERVER_ModelBatchFlag
_ONE_TO_ONE, _DECOUPLED = 1, 2  # of TRITONSERVER_ModelTxnPropertyFlag
_NEWEST = -1


class CalledModels:
    """Answers of the server on its models.

    Args:
        server: The handle of the server.
        call: Asks the server; raises InvalidArgumentError if it refuses.
        documents: Gets what is answered as JSON.
        parameters: What a load may bring along.
    """

    def __init__(
        self,
        server: int,
        call: Callable[..., Any],
        documents: Documents,
        parameters: Parameters,
    ) -> None:
        self._server = server
        self._call = call
        self._documents = documents
        self._parameters = parameters
        # What was found: a model that is called again is not asked for again. If it is unloaded
        # meanwhile, the call itself is refused.
        self._found: dict[tuple[str, int], dict[str, Any]] = {}

    def find(self, server: int, name: str, version: int) -> dict[str, Any]:
        """Returns facts about a model that is ready; raises ServerError if it is not."""
        self._check(server)
        key = name, version
        if key not in self._found:
            self._found[key] = self._describe(name, version)
        return self._found[key]

    def _describe(self, name: str, version: int) -> dict[str, Any]:
        facts: dict[str, Any] = self._call("describe_model", name=name, version=_text(version))
        if "error" in facts:
            raise error_from_code(facts["code"], facts["error"])
        return facts

    def _check(self, server: int) -> None:
        if server != self._server:
            raise InvalidArgumentError(f"expected the handle of the server, got {server:#x}")

    @export("TRITONSERVER_ServerIsLive", "TRITONSERVER_ServerIsReady")
    def _is_live(self, server: int, place: int) -> None:
        self._check(server)
        put_bool(place, True)

    @export("TRITONSERVER_ServerModelIsReady")
    def _is_ready(self, server: int, name: bytes | None, version: int, place: int) -> None:
        self._check(server)
        ready = self._call("is_model_ready", name=required_text(name), version=_text(version))
        put_bool(place, ready)

    @export("TRITONSERVER_ServerModelBatchProperties")
    def _batching(
        self, server: int, name: bytes | None, version: int, place: int, further: int
    ) -> None:
        self._check(server)
        _put_nothing(further)
        facts = self._describe(required_text(name), version)
        put_half_word(place, _FIRST_DIM if facts["max_batch_size"] else _UNKNOWN_BATCHING)

    @export("TRITONSERVER_ServerModelTransactionProperties")
    def _transactions(
        self, server: int, name: bytes | None, version: int, place: int, further: int
    ) -> None:
        self._check(server)
        _put_nothing(further)
        facts = self._describe(required_text(name), version)
        put_half_word(place, _DECOUPLED if facts["is_decoupled"] else _ONE_TO_ONE)

    @export("TRITONSERVER_ServerModelConfig")
    def _config(
        self, server: int, name: bytes | None, version: int, config_version: int, place: int
    ) -> None:
        self._check(server)
        facts = self._describe(required_text(name), version)
        if config_version != 1:
            raise InvalidArgumentError(
                f"model configuration version {config_version} not supported, supported versions "
                "are: 1"
            )
        put_word(place, self._documents.new_from_text(facts["config"].encode()))

    # Loading

    @export("TRITONSERVER_ServerLoadModel")
    def _load(self, server: int, name: bytes | None) -> None:
        self._load_with_parameters(server, name, 0, 0)

    @export("TRITONSERVER_ServerLoadModelWithParameters")
    def _load_with_parameters(
        self, server: int, name: bytes | None, parameters: int, count: int
    ) -> None:
        self._check(server)
        config, files = "", {}
        for each in self._parameters.read(parameters, count):
            if each.name == "config":
                config = str(each.value)
            elif each.name.startswith("file:"):
                files[each.name.removeprefix("file:")] = _content(each)
            else:
                raise InvalidArgumentError(f"unexpected parameter '{each.name}' of a load")
        self._found.clear()
        self._call("load_model", name=required_text(name), config=config, files=files)

    @export("TRITONSERVER_ServerUnloadModel")
    def _unload(self, server: int, name: bytes | None) -> None:
        self._end(server, name, unload_dependents=False)

    @export("TRITONSERVER_ServerUnloadModelAndDependents")
    def _unload_with_dependents(self, server: int, name: bytes | None) -> None:
        self._end(server, name, unload_dependents=True)

    def _end(self, server: int, name: bytes | None, *, unload_dependents: bool) -> None:
        self._check(server)
        self._found.clear()
        self._call("unload_model", name=required_text(name), unload_dependents=unload_dependents)


def _text(version: int) -> str:
    return "" if version == _NEWEST else str(version)


def _content(parameter: CallerParameter) -> bytes:
    value = parameter.value
    if not isinstance(value, memoryview):
        raise InvalidArgumentError(f"expected parameter '{parameter.name}' to be of bytes")
    return bytes(value)


def _put_nothing(place: int) -> None:
    """Write NULL where data of flags would be that do not exist yet, if there is such a place."""
    if place:
        put_word(place, 0)
