# SPDX-License-Identifier: Apache-2.0
"""Passes outcomes to the sinks of their requests, so that each request ends exactly once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.base.errors import (
    InternalError,
    ServerError,
    UnavailableError,
    error_for_clients,
    resource_error,
)
from pytriton.base.request_ids import request_ids
from pytriton.runtime.executor.inference import CLOSED_SINK

if TYPE_CHECKING:
    from pytriton.base.messages import ResponseSink
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Outcome
    from pytriton.runtime.executor.columns import Run
    from pytriton.runtime.executor.inference import Inference

logger = logging.getLogger(__name__)


def deliver(inference: Inference, outcome: Outcome) -> None:
    """Pass an outcome to its sink; if the sink fails, the request ends with an error."""
    if inference.is_over:  # an earlier response could not be delivered
        return
    is_final = outcome.is_final
    chunk = inference.chunk
    sink = inference.sink if chunk is None else chunk.member_sink(inference.index)
    if is_final:  # the same as `Inference.end`, without a call
        inference.is_over = True
        inference.sink = CLOSED_SINK
    try:
        if outcome.error is not None:
            sink.on_error(outcome.error, final=is_final)
        else:
            sink.on_response(outcome.response, final=is_final)
    except Exception as error:  # noqa: BLE001  other requests of the batch must get their responses
        if outcome.error is None or not is_final:
            _fail(sink, inference, error)
        else:
            _log(inference, error)
        if not is_final:
            inference.cancel()  # nobody will receive what the model sends after this
            inference.end()


def deliver_run(inferences: list[Inference], run: Run) -> None:
    """Pass the answers of a run to its sink; if the sink fails, each member ends with an error."""
    for inference in inferences:
        inference.is_over = True
    chunk = run.chunk
    try:
        chunk.sink.on_rows(chunk, run.first, run.end, run.outputs, run.row)
    except Exception as error:  # noqa: BLE001  other requests of the batch must get their responses
        error = _failure(inferences[0], error)
        for inference in inferences:
            _fail(chunk.member_sink(inference.index), inference, error)


def refuse(inference: Inference, error: ServerError) -> None:
    """Report to the sink that its request was refused."""
    sink = inference.end()
    try:
        sink.on_refused(error)
    except Exception as failure:  # noqa: BLE001  it is logged
        _log(inference, failure)


def dispatch_error(model_name: str, error: Exception) -> ServerError:
    """Returns the error for the requests of a batch that could not be sent to an instance."""
    error = resource_error(error) or error
    if isinstance(error, ServerError):
        return error
    logger.error("model %s: a batch could not be sent", model_name, exc_info=error)
    return InternalError(
        f"Failed to send the request(s) to model '{model_name}', "
        f"message: {type(error).__name__}: {error}"
    )


def not_ready_error(spec: ModelSpec) -> ServerError:
    """Returns the error for the requests that wait when a model ends."""
    return UnavailableError(
        f"Request for unknown model: '{spec.identifier}' version {spec.version} is not at ready "
        "state"
    )


def _fail(sink: ResponseSink, inference: Inference, error: Exception) -> None:
    try:
        sink.on_error(_failure(inference, error))
    except Exception as failure:  # noqa: BLE001  it is logged
        _log(inference, failure)


def _failure(inference: Inference, error: Exception) -> ServerError:
    """Returns the error for the client of a response that its sink did not take."""
    name, request_id = inference.request.model_name, inference.request.id
    with request_ids({0: request_id} if request_id else {}):
        return error_for_clients(error, f"it delivered a response of model {name}")


def _log(inference: Inference, failure: Exception) -> None:
    name, request_id = inference.request.model_name, inference.request.id
    with request_ids({0: request_id} if request_id else {}):
        logger.error("model %s: a response could not be delivered", name, exc_info=failure)
