# SPDX-License-Identifier: Apache-2.0
"""GPU memory that instances lend to one another: the server's book, without a call of a driver.

A tensor that an instance keeps for others is a `DeviceBlock` here. Requests and responses refer to
it, and each instance that gets it has a lease. When nothing refers to it any more and all leases
have ended, its owner is told, and may use the memory again. An instance that ends gives back all
its leases. If the owner ends, those that have its memory open close it when they are done.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.device_copies import COPY_REASONS, CopyReason
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import DeviceBytes, DevicePlace, DeviceUse
from pytriton.runtime.executor import device_regions
from pytriton.runtime.transport.frames import DeviceNotes, ReleaseExports
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytriton.base.messages import DeviceExport, InferTensor
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.device_regions import DeviceInstance
    from pytriton.runtime.executor.inference import BatchCosts, Instance

_leases = itertools.count(1)
_MAX_ALLOCATIONS = 1 << 16  # of one instance
SHARED = ""  # in place of a reason: a tensor was not copied


class _Keeper:
    """Keeps a tensor in its owner until nothing refers to this."""

    __slots__ = ("block", "ledger")

    def __init__(self, ledger: DeviceLedger, block: int) -> None:
        self.ledger = ledger
        self.block = block

    def __del__(self) -> None:
        self.ledger.release(self.block)


def _check_part(offset: int, size: int, whole: int) -> None:
    """Refuse what is not inside: beyond its end, the GPU of whoever reads it would fail for good.

    Raises:
        InvalidArgumentError: It is not.
    """
    if min(offset, size) < 0 or offset + size > whole:
        raise InvalidArgumentError(
            f"expected a part of {whole} bytes of GPU memory, got {size} from {offset}"
        )


class DeviceBlock:
    """A tensor in GPU memory of an instance."""

    __slots__ = ("_keeper", "place")

    def __init__(self, keeper: _Keeper, place: DevicePlace) -> None:
        self._keeper = keeper
        self.place = place  # without a lease

    def part(self, offset: int, size: int) -> DeviceBlock:
        """Returns a part of it, which keeps the whole."""
        place = self.place
        _check_part(offset, size, place.size)
        changed = msgspec.structs.replace(place, offset=place.offset + offset, size=size)
        return DeviceBlock(self._keeper, changed)

    def leased(self, ledger: DeviceLedger, lease: int) -> DevicePlace:
        """Returns where it is, for an instance that has this lease."""
        keeper = self._keeper
        own = keeper.block if keeper.ledger is ledger else 0
        return msgspec.structs.replace(self.place, lease=lease, own=own)


class DeviceLedger:
    """What one instance has given to others in GPU memory, and what it was lent.

    Args:
        instance: Whose it is.
        costs: Returns the sums of its model, which count tensors; None: nobody wants them.
        send: Sends a frame to the instance.

    Attributes:
        refusal: Why it neither gives nor takes GPU memory; empty: it does.
        keeps_inputs: Its model wants inputs where they are.
        gpu: The device that it uses, if that is known.
    """

    def __init__(
        self,
        instance: DeviceInstance,
        costs: Callable[[], BatchCosts | None],
        loop: asyncio.AbstractEventLoop,
        send: Callable[[ReleaseExports], None],
    ) -> None:
        self.refusal = CopyReason.INSTANCE_KIND  # until it has said that it does
        self.keeps_inputs = False
        self.gpu = b""
        self._instance = instance
        self._costs = costs
        self._loop = loop
        self._send = send
        self._allocations: dict[int, int] = {}  # the numbers of regions, by the instance's own
        self._lent: dict[int, DeviceBlock] = {}  # by lease
        # Why it could not open memory, by the ledgers of those that it is of.
        self._unopened: weakref.WeakKeyDictionary[DeviceLedger, str] = weakref.WeakKeyDictionary()
        self._released: list[int] = []
        self._is_sending = False  # they will be sent soon
        self._is_open = True

    @property
    def _words(self) -> str:
        return f"instance '{self._instance.name}'"

    @property
    def closed(self) -> str:
        """Why it takes no GPU memory, as it could not open some of a process that is there."""
        reasons = (why for owner, why in self._unopened.items() if owner._is_open)  # noqa: SLF001
        return next(reasons, "")

    @property
    def lent_count(self) -> int:
        """How many leases it has."""
        return len(self._lent)

    # What it gives

    def take(self, export: DeviceExport) -> DeviceBlock:
        """Returns the block of a tensor that the instance has sent.

        Raises:
            InvalidArgumentError: It is none that this instance may send.
        """
        if self.refusal:
            raise InvalidArgumentError(f"{self._words} does not share GPU memory")
        if export.lease:
            lent = self._lent.get(export.lease)
            if lent is None:
                raise InvalidArgumentError(
                    f"{self._words} has passed GPU memory on that it has given back"
                )
            return lent.part(export.offset, export.size)
        _check_part(export.offset, export.size, export.allocation_size)
        number = self._allocations.get(export.allocation)
        if number is None:
            if len(self._allocations) >= _MAX_ALLOCATIONS:
                raise InvalidArgumentError(
                    f"{self._words} shares more than {_MAX_ALLOCATIONS} allocations of GPU memory"
                )
            number = self._allocations[export.allocation] = device_regions.add_region(self)
        place = DevicePlace(
            f"of {self._words}",
            number,
            export.handle,
            export.device,
            export.allocation_size,
            export.offset,
            export.size,
            export.gpu,
        )
        return DeviceBlock(_Keeper(self, export.block), place)

    def take_all(self, exports: Mapping[str, DeviceExport]) -> dict[str, DeviceBytes]:
        """Returns what stands for the data of tensors; whatever is not used of it is released.

        Raises:
            InvalidArgumentError: One is none that this instance may send; all are released.
        """
        try:
            return {
                name: DeviceBytes.of_size(export.size, self.take(export))
                for name, export in exports.items()
            }
        except InvalidArgumentError:
            self.drop(exports.values())
            raise

    def drop(self, exports: Iterable[DeviceExport]) -> None:
        """Release tensors that nobody gets."""
        for export in exports:
            if export.block:
                self.release(export.block)

    def release(self, block: int) -> None:
        """Tell the instance soon that a tensor is not used any more; from any thread."""
        if not self._is_open:
            return
        self._released.append(block)
        if not self._is_sending:  # threads may meet here; sending twice does no harm
            self._is_sending = True
            try:
                self._loop.call_soon_threadsafe(self._send_released)
            except RuntimeError:  # the loop is closed: the server ends, and its instances with it
                self._is_open = False

    def _send_released(self) -> None:
        self._is_sending = False
        released, self._released = self._released, []
        if released and self._is_open:
            self._send(ReleaseExports(released))

    # What it gets

    def lend(self, block: DeviceBlock) -> DevicePlace:
        """Give a tensor to the instance, until it ends its lease.

        Raises:
            UnavailableError: The process that it is of has ended.
        """
        device_regions.add_user(block.place, self._instance)
        lease = next(_leases)
        self._lent[lease] = block
        self._count(SHARED, 1)
        return block.leased(self, lease)

    def lend_use(self, device: DeviceUse, inputs: Mapping[str, InferTensor]) -> DeviceUse:
        """Returns where inputs are, for the instance: those in memory of others are lent."""
        if not any(place.gpu for place in device.inputs.values()):
            return device  # all are of clients
        places = {}
        for name, place in device.inputs.items():
            block = getattr(inputs[name].data, "block", None)
            places[name] = place if block is None else self.lend(block)
        return DeviceUse(places, device.outputs)

    def end_leases(self, leases: Iterable[int]) -> None:
        """Take tensors back."""
        for lease in leases:
            self._lent.pop(lease, None)

    # Its life

    def on_notes(self, notes: DeviceNotes) -> None:
        """Take what the instance has to say.

        Raises:
            ProtocolError: It says why a tensor was copied, and that is no reason.
        """
        for reason, count in notes.copied.items():
            # It becomes a label of a metric, of which a model must not make as many as it likes.
            if reason not in COPY_REASONS or count < 0:
                raise ProtocolError(f"expected why tensors were copied, got {reason!r}: {count}")
            self._count(reason, count)
        self.end_leases(notes.leases)
        for allocation in notes.gone:
            number = self._allocations.pop(allocation, None)
            if number is not None:
                device_regions.remove_region(number)
        for number, reason in notes.unopened.items():
            # What is lent is not freed. So if it is gone, its process has ended, and that is why.
            owner = device_regions.owner_of(number)
            if reason not in COPY_REASONS:  # others are told it, and count by it
                raise ProtocolError(f"expected why memory was not opened, got {reason!r:.80}")
            if isinstance(owner, DeviceLedger):
                self._unopened[owner] = reason

    def _count(self, reason: str, count: int) -> None:
        costs = self._costs()
        if costs is not None:
            costs.gpu_tensors[reason] += count

    def close(self) -> None:
        """Give back all leases, and let others close memory of an instance that has ended."""
        self._is_open = False
        self._lent.clear()
        allocations, self._allocations = self._allocations, {}
        for number in allocations.values():
            device_regions.remove_region(number)


class Taking(msgspec.Struct, frozen=True):
    """Whether a model gets tensors where they are."""

    gpu: bytes = b""  # only those of this device; empty: of any
    reason: str = ""  # why not, if it does not


def taking_of(spec: ModelSpec, instances: Sequence[Instance]) -> Taking:
    """Returns whether all instances of a model take inputs in GPU memory."""
    if spec.sequence is not None or spec.response_cache:
        is_sequence = spec.sequence is not None
        return Taking(reason=CopyReason.SEQUENCE if is_sequence else CopyReason.CACHE)
    if not instances:
        is_ensemble = spec.platform == "ensemble"
        return Taking(reason=CopyReason.ENSEMBLE if is_ensemble else CopyReason.NO_INSTANCE)
    gpus = set()
    for instance in instances:
        ledger = ledger_of(instance)
        if ledger is None:
            return Taking(reason=CopyReason.INSTANCE_KIND)
        reason = ledger.refusal or ledger.closed
        if not reason and not ledger.keeps_inputs:
            reason = CopyReason.HOST_INPUTS
        if reason:
            return Taking(reason=reason)
        gpus.add(ledger.gpu)
    gpus.discard(b"")
    if len(gpus) > 1:
        return Taking(reason=CopyReason.OTHER_DEVICE)
    return Taking(gpus.pop() if gpus else b"")


def may_give(spec: ModelSpec) -> bool:
    """Returns whether outputs of a model may stay in GPU memory: the server must not keep them."""
    return spec.sequence is None and not spec.response_cache


def ledger_of(instance: object) -> DeviceLedger | None:
    """Returns the ledger of an instance; None if it is of a kind that has none."""
    ledger: DeviceLedger | None = getattr(instance, "device_ledger", None)
    return ledger


def is_sharing(instance: object) -> bool:
    """Returns whether tensors of an instance may stay in its GPU memory for others."""
    ledger = ledger_of(instance)
    return ledger is not None and not ledger.refusal


def replace_data(tensors: Iterable[InferTensor], taken: Mapping[str, DeviceBytes]) -> None:
    """Let those of some tensors stand for memory that were taken."""
    for tensor in tensors:
        tensor.data = taken.get(tensor.name, tensor.data)


def use_of(inputs: Mapping[str, InferTensor]) -> DeviceUse | None:
    """Returns which inputs of a request are in GPU memory of instances; None if none is."""
    places = {
        name: tensor.data.block.place
        for name, tensor in inputs.items()
        if isinstance(tensor.data, DeviceBytes) and tensor.data.block is not None
    }
    return DeviceUse(places, {}) if places else None
