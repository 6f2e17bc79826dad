# SPDX-License-Identifier: Apache-2.0
"""The server's book of GPU memory that instances lend to one another."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.messages import DeviceBytes, DeviceExport, InferTensor
from pytriton.runtime.executor import device_blocks
from pytriton.runtime.executor.device_blocks import (
    DeviceLedger,
    replace_data,
    taking_of,
    use_of,
)
from pytriton.runtime.transport.frames import DeviceNotes
from pytriton.runtime.transport.peer_account import ProtocolError
from pytriton.serving.engine.costs import ModelCosts


class Instance:
    """An instance with a ledger, and what it was told."""

    takes_device_memory = True

    def __init__(self, name, loop, **facts):
        self.name = name
        self.released, self.dropped = [], []
        self.costs = ModelCosts()
        self.device_ledger = DeviceLedger(
            self, lambda: self.costs, loop, lambda frame: self.released.extend(frame.blocks)
        )
        self.device_ledger.refusal = facts.get("refusal", "")
        self.device_ledger.keeps_inputs = facts.get("keeps_inputs", True)
        self.device_ledger.gpu = facts.get("gpu", b"")

    def drop_regions(self, numbers):
        self.dropped += numbers


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def settle(loop):
    gc.collect()
    loop.run_until_complete(asyncio.sleep(0))


def export(block=1, allocation=10, **changes):
    values = {"size": 16, "offset": 64, "handle": bytes(64), "gpu": b"g" * 16, **changes}
    return DeviceExport(block, allocation=allocation, allocation_size=4096, **values)


@pytest.fixture
def owner(loop):
    return Instance("owner", loop)


@pytest.fixture
def reader(loop):
    return Instance("reader", loop)


def test_tensor_is_released_when_nothing_refers_to_it(loop, owner):
    blocks = [owner.device_ledger.take(export(number)) for number in (1, 2)]
    settle(loop)

    assert owner.released == []
    del blocks[0]
    settle(loop)
    assert owner.released == [1]


def test_lease_keeps_a_tensor(loop, owner, reader):
    place = reader.device_ledger.lend(owner.device_ledger.take(export()))
    settle(loop)

    assert owner.released == []
    assert (place.offset, place.size, place.own) == (64, 16, 0)
    reader.device_ledger.on_notes(DeviceNotes(leases=[place.lease]))
    settle(loop)
    assert owner.released == [1]


def test_reader_that_ends_gives_back_all_it_was_lent(loop, owner, reader):
    for number in range(3):
        reader.device_ledger.lend(owner.device_ledger.take(export(number)))
    reader.device_ledger.close()
    settle(loop)

    assert sorted(owner.released) == [0, 1, 2]


def test_owner_that_ends_is_told_nothing_and_its_memory_is_closed(loop, owner, reader):
    place = reader.device_ledger.lend(owner.device_ledger.take(export()))
    block = owner.device_ledger.take(export(2))
    owner.device_ledger.close()

    assert reader.dropped == [place.number]
    with pytest.raises(UnavailableError, match="'owner' is gone: its process has ended"):
        reader.device_ledger.lend(block)
    del block
    settle(loop)
    assert owner.released == []


def test_freed_allocation_is_closed_by_those_that_used_it(owner, reader):
    place = reader.device_ledger.lend(owner.device_ledger.take(export()))
    owner.device_ledger.on_notes(DeviceNotes(gone=[10, 11]))

    assert reader.dropped == [place.number]
    again = owner.device_ledger.take(export())
    assert again.place.number != place.number


def test_owner_gets_its_own_memory_by_its_own_number(owner):
    block = owner.device_ledger.take(export(5))

    assert owner.device_ledger.lend(block).own == 5


def test_memory_that_was_lent_can_be_passed_on(loop, owner, reader):
    third = Instance("third", loop)
    place = reader.device_ledger.lend(owner.device_ledger.take(export()))
    passed = DeviceExport(0, 8, 4, lease=place.lease)
    onward = third.device_ledger.lend(reader.device_ledger.take(passed))
    reader.device_ledger.end_leases([place.lease])
    settle(loop)

    assert (onward.offset, onward.size, onward.number) == (68, 8, place.number)
    assert owner.released == []
    third.device_ledger.end_leases([onward.lease])
    settle(loop)
    assert owner.released == [1]


@pytest.mark.parametrize("offset, size", [(4090, 16), (-4, 8), (0, -1), (0, 4097)])
def test_tensor_beyond_its_allocation_is_refused(owner, offset, size):
    with pytest.raises(InvalidArgumentError, match="expected a part of 4096 bytes"):
        owner.device_ledger.take(export(offset=offset, size=size))


@pytest.mark.parametrize("offset, size", [(12, 8), (-4, 8), (0, 17), (4, -1)])
def test_part_beyond_the_memory_is_refused(owner, reader, offset, size):
    place = reader.device_ledger.lend(owner.device_ledger.take(export()))

    with pytest.raises(InvalidArgumentError, match="expected a part of 16 bytes"):
        reader.device_ledger.take(DeviceExport(0, size, offset, lease=place.lease))


def test_memory_that_was_given_back_cannot_be_passed_on(reader):
    with pytest.raises(InvalidArgumentError, match="that it has given back"):
        reader.device_ledger.take(DeviceExport(0, 8, 0, lease=77))


def test_instance_that_shares_nothing_cannot_send_such_tensors(loop):
    with pytest.raises(InvalidArgumentError, match="'enclosed' does not share GPU memory"):
        Instance("enclosed", loop, refusal="sandbox").device_ledger.take(export())


def test_tensors_that_nobody_gets_are_released(loop, owner):
    owner.device_ledger.drop([export(1), DeviceExport(0, 8, 0, lease=77), export(2)])
    settle(loop)

    assert owner.released == [1, 2]


def test_tensors_that_came_with_a_wrong_one_are_released(loop, owner):
    wrong = DeviceExport(0, 8, 0, lease=77)

    with pytest.raises(InvalidArgumentError, match="that it has given back"):
        owner.device_ledger.take_all({"a": export(1), "b": wrong, "c": export(2)})
    settle(loop)
    assert set(owner.released) == {1, 2}


def test_inputs_say_where_they_are(owner):
    tensors = [InferTensor(name, dtypes.FP32, (4,), b"") for name in ("a", "b")]
    replace_data(tensors, owner.device_ledger.take_all({"a": export()}))
    inputs = {tensor.name: tensor for tensor in tensors}

    assert len(inputs["a"].data) == 16
    assert list(use_of(inputs).inputs) == ["a"]
    assert use_of({"b": inputs["b"]}) is None
    assert use_of({"c": InferTensor("c", dtypes.FP32, (1,), DeviceBytes.of_size(4))}) is None


def test_tensors_are_counted_for_their_model_by_reason(owner, reader):
    reader.device_ledger.lend(owner.device_ledger.take(export()))
    owner.device_ledger.on_notes(DeviceNotes(copied={"cannot_export": 2}))

    assert reader.costs.gpu_tensors == {"": 1}
    assert owner.costs.gpu_tensors == {"cannot_export": 2}


def test_tensors_are_not_counted_if_nobody_wants_costs(owner):
    owner.costs = None
    owner.device_ledger.on_notes(DeviceNotes(copied={"cannot_export": 2}))

    assert owner.device_ledger.lend(owner.device_ledger.take(export())).size == 16


@pytest.mark.parametrize("copied", [{'x"} 1\n': 1}, {"cannot_export": -1}])
def test_instance_cannot_invent_why_tensors_were_copied(owner, copied):
    with pytest.raises(ProtocolError, match="expected why tensors were copied"):
        owner.device_ledger.on_notes(DeviceNotes(copied=copied))

    assert not owner.costs.gpu_tensors


def spec(**changes):
    values = {"sequence": None, "response_cache": False, "platform": "python", **changes}
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    "facts, reason, gpu",
    [
        ([{}], "", b""),
        ([{"gpu": b"a"}, {"gpu": b"a"}, {}], "", b"a"),
        ([{"gpu": b"a"}, {"gpu": b"b"}], "other_device", b""),
        ([{}, {"keeps_inputs": False}], "host_inputs", b""),
        ([{"refusal": "sandbox"}], "sandbox", b""),
        ([], "no_instance", b""),
    ],
)
def test_model_takes_tensors_if_all_its_instances_do(loop, facts, reason, gpu):
    instances = [Instance("i", loop, **each) for each in facts]

    assert taking_of(spec(), instances) == device_blocks.Taking(gpu, reason)


def test_model_with_sequences_a_cache_or_other_instances_takes_none(loop, owner):
    assert taking_of(spec(sequence=object()), [owner]).reason == "sequence"
    assert taking_of(spec(response_cache=True), [owner]).reason == "response_cache"
    assert taking_of(spec(), [SimpleNamespace(name="f")]).reason == "instance_kind"
    assert taking_of(spec(platform="ensemble"), ()).reason == "ensemble"


def unopened(block):
    return DeviceNotes(unopened={block.place.number: "cannot_open"})


def test_instance_that_could_not_open_memory_takes_none_and_still_gives(owner, reader):
    block = owner.device_ledger.take(export())
    reader.device_ledger.lend(block)
    reader.device_ledger.on_notes(unopened(block))
    owner.device_ledger.on_notes(DeviceNotes(gone=[10]))

    assert taking_of(spec(), [reader]).reason == "cannot_open"
    assert reader.device_ledger.take(export()).place.size == 16


def test_instance_takes_memory_again_if_the_owner_has_freed_what_it_could_not_open_and_ended(
    owner, reader
):
    block = owner.device_ledger.take(export())
    reader.device_ledger.lend(block)
    reader.device_ledger.on_notes(unopened(block))
    owner.device_ledger.on_notes(DeviceNotes(gone=[10]))
    owner.device_ledger.close()

    assert taking_of(spec(), [reader]).reason == ""


@pytest.mark.parametrize("is_end_known", [False, True])
def test_instance_takes_memory_again_if_the_owner_of_what_it_could_not_open_has_ended(
    owner, reader, is_end_known
):
    block = owner.device_ledger.take(export())
    reader.device_ledger.lend(block)
    if is_end_known:
        owner.device_ledger.close()
        reader.device_ledger.on_notes(unopened(block))
    else:
        reader.device_ledger.on_notes(unopened(block))
        owner.device_ledger.close()

    assert taking_of(spec(), [reader]).reason == ""
