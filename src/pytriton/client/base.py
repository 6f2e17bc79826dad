# SPDX-License-Identifier: Apache-2.0
"""The common base of all clients: settings, and conversion of requests and results.

Nothing here communicates with a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.client import official, tensors
from pytriton.client.auth import create_auth_headers
from pytriton.client.connections import MAX_TIMEOUT_S
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientValueError,
)
from pytriton.client.kserve.address import Tls
from pytriton.client.protocols import BY_SCHEME, GRPC, as_metadata, failure_of
from pytriton.client.service import InferInput, RequestedOutput
from pytriton.client.tensors import Array, Parameters
from pytriton.client.url import TritonUrl
from pytriton.client.waiting import (
    DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S,
    MIN_TIMEOUT_S,
    ReadinessWait,
    check_limit,
)
from pytriton.model_config.triton_model_config import TritonModelConfig

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_INFERENCE_TIMEOUT_S = 60.0
_LARGE_BYTES = 2**20  # smaller inputs are copied in a fraction of a millisecond


class BaseModelClient:
    """Settings of a client; all clients derive from this class.

    Args:
        url: address of the server, `[scheme://]host[:port]`; the scheme is http (the default) or
            grpc, and the default ports are 8000 and 8001. With https and grpcs, connections are
            encrypted, and the default port is 443.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        lazy_init: whether to request the model's configuration when it is first needed. Otherwise
            the constructor waits for the model, or `async with` of an asyncio client.
        init_timeout_s: timeout until the server and the model are ready and the model's
            configuration is received; default is 300 s, but less if the server is ready, does not
            know the model and has others: 5 s if one has a similar name, otherwise 30 s.
        inference_timeout_s: timeout of an inference, from connecting to the last byte of the
            response; default is 60 s.
        model_config: configuration of the model, if it is already known.
        ensure_model_is_ready: whether to wait for the model before the first inference even if
            `model_config` is given.
        access_token: token for the server's protected endpoints, sent with every request.
        tls: what encrypted connections trust and show, for addresses with https or grpcs; by
            default they trust the certificates of the system, or those in SSL_CERT_FILE.

    Raises:
        PyTritonClientInvalidUrlError: The address is malformed.
        PyTritonClientValueError: The version is not text, a timeout is not a number, or gRPC cannot
            send the access token.
        ValueError: The access token is empty.
    """

    _is_asyncio = False
    _wants_decoupled_model = False
    _schemes: tuple[str, ...] = ("http", "grpc")

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._url = TritonUrl.from_url(url)
        self._tls = Tls() if tls is None else tls
        if self._url.scheme not in self._schemes:
            raise PyTritonClientValueError(
                f"{type(self).__name__} supports only {', '.join(self._schemes)}, got {url!r}"
            )
        if not isinstance(model_version, str | None):
            raise PyTritonClientValueError(
                f"Expected a model's version as text, such as '1', got {model_version!r}"
            )
        self._protocol = BY_SCHEME[self._url.scheme]
        self._protocol.prepare()
        self._model_name = model_name
        self._model_version = model_version
        self._lazy_init = lazy_init
        self._init_timeout_s = _timeout_of(
            "init_timeout_s", init_timeout_s, DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S
        )
        # Nobody has said how long a model may take that the server does not know yet.
        self._gives_up = init_timeout_s is None
        self._inference_timeout_s = _timeout_of(
            "inference_timeout_s", inference_timeout_s, DEFAULT_INFERENCE_TIMEOUT_S
        )
        self._model_config = model_config
        self._model_ready = model_config is not None and not ensure_model_is_ready
        self._access_token = access_token
        self._auth_headers = (
            None if access_token is None else create_auth_headers(access_token, self._url.scheme)
        )
        if self._auth_headers is not None and self._protocol is GRPC:
            self._auth_headers = as_metadata(self._auth_headers)
        self._request_ids = itertools.count()
        self._requested_outputs: tuple[TritonModelConfig, list[RequestedOutput]] | None = None
        # Connections need gRPC's threads or an event loop, which do not survive a fork.
        is_bound = self._protocol is GRPC or self._is_asyncio
        self._only_in_pid = os.getpid() if is_bound else None
        self._closed = False

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<{type(self).__name__} of {self._model_name} at {self._url.with_scheme}{state}>"

    def _wait_for_model(self, timeout_s: float) -> ReadinessWait:
        address = self._url.with_scheme
        return ReadinessWait(timeout_s, address=address, gives_up=self._gives_up)

    @classmethod
    def from_existing_client(cls, existing_client: BaseModelClient) -> Self:
        """Create a client with the settings of another client.

        Args:
            existing_client: the client to copy. If it has the model's configuration, the new
                client uses that and requests nothing before its first inference.

        Returns:
            A client with its own connections.
        """
        return cls(
            existing_client._url.with_scheme,
            existing_client._model_name,
            existing_client._model_version,
            init_timeout_s=None if existing_client._gives_up else existing_client._init_timeout_s,
            inference_timeout_s=existing_client._inference_timeout_s,
            model_config=existing_client._model_config,
            ensure_model_is_ready=existing_client._model_config is None,
            access_token=existing_client._access_token,
            tls=existing_client._tls,
        )

    def get_lib(self) -> Any:
        """Return the module of the package `tritonclient` for the client's protocol.

        Returns:
            The module.

        Raises:
            ModuleNotFoundError: The package is not installed; the extra `tritonclient` brings it.
        """
        return official.load(self._protocol.scheme, is_asyncio=self._is_asyncio)

    def create_client_from_url(self, url: str, network_timeout_s: float | None = None) -> Any:
        """Create what this client asks the server with; it uses two of them.

        Args:
            url: address of the server, as in the constructor.
            network_timeout_s: timeout of its calls over HTTP; default is `inference_timeout_s`.

        Returns:
            An object with the methods of a client of `tritonclient` that this client calls. A
            subclass may return a client of that package.

        Raises:
            PyTritonClientInvalidUrlError: The address is malformed.
        """
        address = TritonUrl.from_url(url)
        limit_s = self._inference_timeout_s if network_timeout_s is None else network_timeout_s
        if official.has_fakes(address.scheme, is_asyncio=self._is_asyncio):
            if self._is_asyncio:
                return official.connect_asyncio(address)
            return official.connect(address, limit_s)
        protocol = BY_SCHEME[address.scheme]
        connect = protocol.connect_asyncio if self._is_asyncio else protocol.connect
        return connect(address, limit_s, self._tls)

    def _check_usable(self) -> None:
        if self._closed:
            raise PyTritonClientClosedError(f"{type(self).__name__} is closed")
        if self._only_in_pid is not None and self._only_in_pid != os.getpid():
            raise PyTritonClientClosedError(
                f"{type(self).__name__} was made in process {self._only_in_pid} and this is its "
                f"fork {os.getpid()}, which its connections do not survive. Make a client in "
                "each process."
            )

    @contextlib.contextmanager
    def _converting_close_errors(self) -> Iterator[None]:
        """Converts errors caused by a concurrent close() into PyTritonClientClosedError.

        gRPC raises various errors in this case, or cancels the call.
        """
        try:
            yield
        except PyTritonClientError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if not self._closed or _is_cancellation_of_task(error):
                raise
            raise PyTritonClientClosedError(f"{type(self).__name__} is closed") from error

    def _check_arguments(
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
    ) -> None:
        tensors.check_convention(inputs, named_inputs)
        if parameters is not None:
            tensors.check_parameters("Parameters", parameters)
        if headers is not None:
            tensors.check_parameters("Headers", headers)
        self._check_usable()
        tensors.check_arrays(inputs, named_inputs)

    def _prepare(
        self,
        config: TritonModelConfig,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        *,
        is_batch: bool,
    ) -> tuple[Mapping[str, Array], Callable[[dict[str, Array]], dict[str, Array]]]:
        """Returns the inputs in the model's names and shapes, and a conversion for its outputs."""
        self._check_model(config, is_batch=is_batch)
        given = tensors.name_inputs(config, inputs, named_inputs)
        if is_batch or config.max_batch_size <= 0:
            return given, tensors.unchanged
        return tensors.add_batch_axis(given), tensors.remove_batch_axis

    def _check_model(self, config: TritonModelConfig, *, is_batch: bool) -> None:
        if config.decoupled and not self._wants_decoupled_model:
            raise PyTritonClientInferenceServerError(
                f"Model {self._model_name} is decoupled, it may answer any number of times: use "
                "DecoupledModelClient or AsyncioDecoupledModelClient."
            )
        if self._wants_decoupled_model and not config.decoupled:
            raise PyTritonClientInferenceServerError(
                f"Model {self._model_name} is not decoupled, it answers once: use ModelClient, "
                "FuturesModelClient or AsyncioModelClient."
            )
        if is_batch and config.max_batch_size <= 0:
            raise PyTritonClientModelDoesntSupportBatchingError(
                f"Model {self._model_name} doesn't support batching: use infer_sample."
            )

    def _request(
        self,
        config: TritonModelConfig,
        inputs: Mapping[str, Array],
        parameters: Parameters | None,
    ) -> dict[str, Any]:
        """Returns the arguments for the inference methods of `_infer_client`."""
        parameters, settings = tensors.split_parameters(parameters)
        return {
            "model_name": self._model_name,
            "model_version": self._model_version or "",
            "inputs": [self._infer_input(name, array) for name, array in inputs.items()],
            "outputs": self._outputs_of(config),
            "request_id": str(next(self._request_ids)),
            "parameters": parameters,
            **settings,
        }

    def _limit_s(self, inputs: Mapping[str, Array], began_s: float) -> float:
        """Returns the time left for a request; preparing a large request takes a part of it."""
        if sum([array.nbytes for array in inputs.values()]) < _LARGE_BYTES:
            return self._inference_timeout_s
        return max(self._inference_timeout_s - (time.monotonic() - began_s), MIN_TIMEOUT_S)

    def _infer_input(self, name: str, array: Array) -> InferInput:
        datatype = tensors.datatype_of(name, array)
        if array.dtype.kind == "O":
            array = tensors.with_plain_bytes(array)
        return InferInput(name, datatype, array)

    def _outputs_of(self, config: TritonModelConfig) -> list[RequestedOutput]:
        if self._requested_outputs is None or self._requested_outputs[0] is not config:
            outputs = [RequestedOutput(spec.name) for spec in config.outputs or ()]
            self._requested_outputs = (config, outputs)
        return self._requested_outputs[1]

    def _headers(self, headers: Parameters | None) -> dict[str, str] | None:
        if not headers:
            # A new one, because clients of `tritonclient` add headers of their own to it.
            return self._auth_headers and dict(self._auth_headers)
        given = {name: str(value) for name, value in headers.items()}
        if self._protocol is GRPC:
            given = as_metadata(given)
        return {**(self._auth_headers or {}), **given}

    def _failure(self, error: Exception) -> PyTritonClientError:
        return failure_of(error, "inference request", f"{self._inference_timeout_s:g} s")


def _timeout_of(name: str, given: float | None, default: float) -> float:
    """Returns a timeout that locks, sockets and event loops accept."""
    if given is None:
        return default
    check_limit(name, given)
    return min(max(given, 0), MAX_TIMEOUT_S)


def _is_cancellation_of_task(error: BaseException) -> bool:
    """Whether the task itself was cancelled; unknown, and thus False, in Python 3.10."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    requests = getattr(asyncio.current_task(), "cancelling", None)
    return requests is not None and requests() > 0
