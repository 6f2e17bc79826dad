# SPDX-License-Identifier: Apache-2.0
"""How the responses of a `model.py` become messages."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError
from pytriton.runtime.backend.batch import BatchReplies
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.python_backend import answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.python_backend.device_tensors import DeviceTensors
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.frames import ResponseItem
    from pytriton.runtime.transport.response_rows import Structure


class ModelReplies(BatchReplies):
    """See `BatchReplies`. Some outputs may belong into GPU memory."""

    def __init__(self, device: DeviceTensors) -> None:
        self._device = device

    def send(
        self,
        batch: WorkerBatch,
        position: int,
        response: InferenceResponse | None,
        *,
        is_final: bool,
    ) -> None:
        """See `BatchReplies`; slow clients are waited for, or the response is queued."""
        if not batch.batches.is_model_process:
            raise TritonModelException(
                "Responses are sent by the process that runs the model, not by one it forked."
            )
        if not batch.is_open(position):
            raise TritonModelException(answers.SENDER_CLOSED)
        try:
            execute = batch.execute
            if response is not None and (execute.devices or execute.device_wishes):
                response = place(batch, position, response, self._device)
            batch.send(position, response, is_final=is_final)
        except ServerError as error:
            # There is no room, or the driver has failed. That is not the model's doing, and its
            # sender may be closed, so nobody else would answer.
            failure = TritonError(error.message, error.code)
            failed = InferenceResponse.received([], failure, None)
            batch.send(position, failed, is_final=is_final)

    def packed(
        self, batch: WorkerBatch, position: int, response: InferenceResponse
    ) -> tuple[Structure, list[bytes], int] | None:
        """See `BatchReplies`."""
        execute = batch.execute
        if execute.devices or execute.device_wishes:
            return None
        return answers.pack_small(response, batch.names(position))

    def item(
        self,
        batch: WorkerBatch,
        position: int,
        response: InferenceResponse,
        is_final: bool,
        payload: Payload,
    ) -> ResponseItem:
        """See `BatchReplies`; what others were to get of what cannot be sent is given up."""
        has_shared = bool(batch.execute.device_wishes)
        try:
            return answers.make_item(
                payload,
                batch.execute.batch,
                position,
                response,
                batch.names(position),
                is_final=is_final,
                has_shared=has_shared,
            )
        except BaseException:
            if has_shared:
                self._device.take_back_responses([response])
            raise

    def kept(
        self, batch: WorkerBatch, position: int, response: InferenceResponse
    ) -> tuple[InferenceResponse, int, Callable[[], None] | None]:
        """See `BatchReplies`."""
        copy, size = answers.copied(response, batch.names(position))
        drop = None
        if batch.execute.device_wishes:
            drop = functools.partial(self._device.take_back_responses, [copy])
        return copy, size, drop


def place(
    batch: WorkerBatch, position: int, response: InferenceResponse, device: DeviceTensors
) -> InferenceResponse:
    """Leave outputs in GPU memory that belong there; returns the response without their bytes.

    They are written to memory of the client, or stay where they are for another model.
    """
    names = batch.names(position)
    use = batch.execute.devices.get(position)
    if use is not None:
        response = device.place(response, names, use)
    wish = batch.execute.device_wishes.get(position)
    if wish is not None:
        response = device.share_outputs(response, names, wish)
    return response
