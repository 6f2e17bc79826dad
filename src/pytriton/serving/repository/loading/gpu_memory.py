# SPDX-License-Identifier: Apache-2.0
"""Refuses to load models that say how much GPU memory they need if their devices have less free.

A model says it with a parameter, for each of its instances. Nobody is refused where NVML is absent
or silent: then the model finds out itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from pytriton.base.driver_call import call_driver
from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.nvml import find_gpus
from pytriton.base.protos import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from pytriton.base.nvml import NvmlReader

logger = logging.getLogger(__name__)

PARAMETER = "GPU_MEMORY_MIB"
_MIB = 1 << 20
_ASK_TIMEOUT_S = 5.0  # a driver that hangs must not keep models from being loaded


def needed_memory(config: Any) -> dict[int, int]:
    """Returns the bytes that the instances of a model need on each device.

    Only instances on GPUs count. Those of a group with several devices count on each of them.

    Raises:
        InvalidArgumentError: The parameter is no number.
    """
    if PARAMETER not in config.parameters:
        return {}
    text = config.parameters[PARAMETER].string_value
    if not text.isdecimal() or int(text) == 0:
        raise InvalidArgumentError(
            f"expected a whole number of MiB above 0 as parameter {PARAMETER} of model "
            f"'{config.name}', got '{text}'"
        )
    needed: dict[int, int] = {}
    for group in config.instance_group:
        if group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU:
            for gpu in group.gpus:
                needed[gpu] = needed.get(gpu, 0) + group.count * int(text) * _MIB
    return needed


class GpuMemory:
    """Admits loads as long as devices have room for them.

    Models that are loaded at the same time must fit together, whether they have taken their memory
    already or not. So what was free when the first of them began counts, less what all need, or
    what is free now if that is more, as others were unloaded.
    """

    def __init__(self, find: Callable[[], NvmlReader | None] = find_gpus) -> None:
        self._find = find
        self._reader: NvmlReader | None = None
        self._asking = asyncio.Lock()
        self._has_looked = False
        self._reserved: dict[int, int] = {}  # by device: what the loads under way need
        self._free_at_first: dict[int, int] = {}  # when the first of them began
        # What models need that were loaded while the driver was asked: reserved until it is again.
        self._ended: list[Mapping[int, int]] = []

    @contextlib.asynccontextmanager
    async def reserve(self, config: Any) -> AsyncIterator[None]:
        """Keep the memory that a model needs free of others while it is loaded.

        Raises:
            UnavailableError: A device has less free memory than the model needs.
            InvalidArgumentError: The configuration does not say it in a number.
        """
        needed = needed_memory(config)
        if not needed:
            yield
            return
        free = await self._free()
        needed = {gpu: size for gpu, size in needed.items() if gpu in free}
        self._check(config, needed, free)
        for gpu, size in needed.items():
            if not self._reserved.get(gpu):
                self._free_at_first[gpu] = free[gpu]
            self._reserved[gpu] = self._reserved.get(gpu, 0) + size
        is_loaded = False
        try:
            yield
            is_loaded = True
        finally:
            if is_loaded and self._asking.locked():
                self._ended.append(needed)  # what is being read may not show its memory yet
            else:
                self._end(needed, is_loaded=is_loaded)

    def _end(self, needed: Mapping[int, int], *, is_loaded: bool) -> None:
        for gpu, size in needed.items():
            self._reserved[gpu] -= size
            if is_loaded:  # the others that are under way find so much less
                self._free_at_first[gpu] -= size

    def _check(self, config: Any, needed: Mapping[int, int], free: Mapping[int, int]) -> None:
        for gpu, size in sorted(needed.items()):
            room = free[gpu]
            others = self._reserved.get(gpu, 0)
            if others:
                room = min(room, max(self._free_at_first[gpu], room) - others)
            if size > room:
                each = int(config.parameters[PARAMETER].string_value)
                count = size // (each * _MIB)
                instances = "1 instance" if count == 1 else f"{count} instances"
                loading = f", and {others // _MIB} MiB are kept for models that are being loaded"
                raise UnavailableError(
                    f"{instances} of model '{config.name}' on GPU {gpu} would need "
                    f"{size // _MIB} MiB of its memory ({PARAMETER}: {each}), but "
                    f"{free[gpu] // _MIB} MiB are free{loading if others else ''}"
                )

    async def _free(self) -> dict[int, int]:
        """Returns the free bytes of each device; none if NVML is absent or does not answer."""
        async with self._asking:
            for needed in self._ended:
                self._end(needed, is_loaded=True)
            self._ended.clear()
            try:
                return await asyncio.wait_for(call_driver(self._read), _ASK_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001  whatever a driver does, models are loaded
                logger.warning("free GPU memory cannot be read, so nothing is refused: %r", error)
                return {}

    def _read(self) -> dict[int, int]:
        if not self._has_looked:
            self._reader = self._find()
            self._has_looked = True
        return {} if self._reader is None else self._reader.free_bytes()
