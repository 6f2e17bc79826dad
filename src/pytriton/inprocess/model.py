# SPDX-License-Identifier: Apache-2.0
"""Models of an in-process server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ServerError
from pytriton.inprocess.enums import ModelBatchFlag, ModelTxnPropertyFlag
from pytriton.inprocess.errors import InvalidArgumentError, public_error, public_errors
from pytriton.inprocess.request import InferenceRequest, engine_request
from pytriton.inprocess.responses import AsyncResponseIterator, InprocessExchange, ResponseIterator
from pytriton.runtime.executor.inference import Inference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.inprocess.server import Server


class Model:
    """A model, by its name. `Server.model`, `Server.models` and `Server.load` return them.

    Whether there is such a model is found out when it is used.

    Attributes:
        server: The server.
        name: The model's name.
        version: Its version; -1: the latest that is ready.
        state: Its state when this object was made, for example "READY"; None if it is not known.
        reason: Why it was in that state.
    """

    __slots__ = ("_answering", "name", "reason", "server", "state", "version")

    def __init__(
        self,
        server: Server,
        name: str,
        version: int = -1,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.server: Server = server
        self.name: str = name
        self.version: int = version
        self.state: str | None = state
        self.reason: str | None = reason
        self._answering: dict[tuple[str, str], Model] = {}

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    # Requests

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """Make a request for this model; the arguments are the fields of `InferenceRequest`."""
        kwargs.pop("model", None)
        return InferenceRequest(self, **kwargs)

    def infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> ResponseIterator:
        """Send a request.

        Args:
            inference_request: The request.
            raise_on_error: Whether the iterator raises the errors of responses.
            **kwargs: The fields of a request, if none is given.

        Returns:
            An iterator over its responses, which waits for them.

        Raises:
            TritonError: The request is not valid, or there is no such model.
        """
        request = inference_request or self.create_request(**kwargs)
        exchange = self._send(request)
        return ResponseIterator(
            exchange, raises=raise_on_error, response_queue=request.response_queue
        )

    def async_infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> AsyncResponseIterator:
        """Send a request; its responses are awaited. See `infer`."""
        request = inference_request or self.create_request(**kwargs)
        if request.response_queue is not None:
            asyncio.get_running_loop()  # raises RuntimeError if there is none to fill the queue
        exchange = self._send(request)
        return AsyncResponseIterator(
            exchange, raises=raise_on_error, response_queue=request.response_queue
        )

    def _send(self, request: InferenceRequest) -> InprocessExchange:
        engine = request.model.server.engine
        exchange = InprocessExchange(
            engine, request.model, request.request_id, request.output_memory_type
        )
        try:
            record = engine_request(request)
            model = engine.find(record.model_name, record.model_version)
            engine.validate(record, model)
            exchange.inference = Inference(record, exchange)
            engine.submit(model, exchange.inference)
        except ServerError as error:
            exchange.inference = None
            raise public_error(error) from None
        return exchange

    def answered_by(self, name: str, version: str) -> Model:
        """Returns the model that a response names: one object for each version."""
        found = self._answering.get((name, version))
        if found is None:
            number = int(version) if version.isdecimal() else self.version
            found = self._answering[name, version] = Model(self.server, name, number)
        return found

    # Questions

    def metadata(self) -> dict[str, Any]:
        """Returns names, datatypes and shapes of inputs and outputs, and the ready versions."""
        with public_errors():
            return self.server.engine.model_metadata(self.name, self._version)

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """Returns the configuration, completed.

        Raises:
            InvalidArgumentError: `config_version` is not 1.
        """
        if config_version != 1:
            raise InvalidArgumentError(
                f"model configuration version {config_version} not supported, supported versions"
                " are: 1"
            )
        with public_errors():
            return self.server.engine.model_config(self.name, self._version)

    def statistics(self) -> dict[str, Any]:
        """Returns the statistics of all versions, or of this one, under "model_stats"."""
        with public_errors():
            return self.server.engine.model_statistics(self.name, self._version)

    def ready(self) -> bool:
        """Returns whether it is ready; an unknown model is not."""
        with public_errors():
            return self.server.engine.is_model_ready(self.name, self._version)

    def batch_properties(self) -> ModelBatchFlag:
        """Returns whether the first dimension of its tensors is that of the batch."""
        with public_errors():
            model = self.server.engine.find(self.name, self._version)
        is_batching = model.spec.max_batch_size > 0
        return ModelBatchFlag.FIRST_DIM if is_batching else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Returns whether it may send any number of responses to a request."""
        with public_errors():
            model = self.server.engine.find(self.name, self._version)
        is_decoupled = model.spec.decoupled
        return ModelTxnPropertyFlag.DECOUPLED if is_decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    @property
    def _version(self) -> str:
        return "" if self.version < 0 else str(self.version)


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by name and version; `models["name"]` is the model's latest version."""

    def __init__(self, server: Server, models: list[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: str | tuple[str, int]) -> Model:
        if isinstance(key, tuple):
            if super().__contains__(key):
                return super().__getitem__(key)
        elif any(name == key for name, _ in self._pairs()):
            return Model(self._server, key)
        raise KeyError(f"Unknown Model: {key}")

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or any(name == key for name, _ in self._pairs())

    def _pairs(self) -> Iterator[tuple[str, int]]:
        return iter(self)
