# SPDX-License-Identifier: Apache-2.0
"""Which regions may be registered and used, and what clients hear otherwise."""

from __future__ import annotations

import errno
import gc
import weakref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.serving.server.shared_memory.regions import MAX_SIZE, Regions

SIZE = 100


class FakeFile:
    """An object of shared memory in a bytearray."""

    descriptor = 7

    def __init__(self, size=SIZE):
        self.content = bytearray(range(size))
        self.write_error = None

    @property
    def size(self):
        return len(self.content)

    def read_into(self, memory, offset):
        part = self.content[offset : offset + len(memory)]
        memory[: len(part)] = part
        return len(part)

    def write(self, data, offset):
        if self.write_error is not None:
            raise self.write_error
        self.content[offset : offset + len(data)] = data


class Scene:
    def __init__(self, max_count=10):
        self.opened = []
        self.file = FakeFile()
        self.changes = []
        self.regions = Regions(self.open, max_count)
        self.regions.on_changed = lambda added, removed: self.changes.append(
            ([region.name for region in added], list(removed))
        )

    def open(self, name):
        self.opened.append(name)
        if self.file is None:
            raise OSError(errno.ENOENT, "no")
        return self.file


@pytest.fixture
def scene():
    return Scene()


def test_registered_region_is_listed_and_found(scene):
    scene.regions.register("b", "//object", 10, 20)
    scene.regions.register("a", "object", 0, SIZE)

    listed = [
        (each.name, each.key, each.offset, each.byte_size)
        for each in scene.regions.system_regions()
    ]
    assert listed == [("a", "object", 0, SIZE), ("b", "//object", 10, 20)]
    assert [each.name for each in scene.regions.system_regions("b")] == ["b"]
    assert scene.opened == ["object", "object"]
    assert scene.changes == [(["b"], []), (["a"], [])]


def test_offset_of_a_tensor_adds_to_that_of_its_region(scene):
    scene.regions.register("r", "object", 10, 20)
    memory = bytearray(4)

    scene.regions.find(RegionPlace("r", 16, 4)).read_into(memoryview(memory))
    scene.regions.find(RegionPlace("r", 0, 4)).write(b"wxyz")

    assert memory == bytes([26, 27, 28, 29])
    assert scene.file.content[9:15] == b"\x09wxyz\x0e"


@pytest.mark.parametrize("key", ["", "/", "//", "a/b", "/a/b", ".", "/..", "../etc", "a\0b"])
def test_key_that_is_no_object_is_never_opened(scene, key):
    with pytest.raises((InternalError, InvalidArgumentError), match="shared memory region"):
        scene.regions.register("r", key, 0, 1)

    assert scene.opened == []


@pytest.mark.parametrize(
    "prefix", ["triton_python_backend_shm_region_", "psm_", "sem.", "pymp-", "torch_"]
)
@pytest.mark.parametrize("slashes", ["", "/", "///"])
def test_objects_of_python_and_of_the_server_are_refused(scene, prefix, slashes):
    key = f"{slashes}{prefix}1"

    with pytest.raises(InvalidArgumentError) as caught:
        scene.regions.register("r", key, 0, 1)

    assert caught.value.message == (
        f"cannot register shared memory region 'r' with key '{key}' as the key contains the "
        f"reserved prefix '{prefix}'"
    )
    assert scene.opened == []


def test_object_that_cannot_be_opened_is_refused(scene):
    scene.file = None

    with pytest.raises(InternalError, match="Unable to open shared memory region: '/k'"):
        scene.regions.register("r", "/k", 0, 1)

    assert len(scene.regions) == 0


def test_name_is_taken_until_it_is_unregistered(scene):
    scene.regions.register("r", "k", 0, 1)

    with pytest.raises(AlreadyExistsError, match="shared memory region 'r' already in manager"):
        scene.regions.register("r", "k", 0, 1)
    scene.regions.unregister("r")
    scene.regions.register("r", "k", 5, 1)

    assert scene.regions.system_regions("r")[0].offset == 5
    assert scene.changes == [(["r"], []), ([], ["r"]), (["r"], [])]


def test_empty_name_is_refused(scene):
    with pytest.raises(InvalidArgumentError, match="'region name' is necessary"):
        scene.regions.register("", "k", 0, 1)


def test_name_that_cannot_be_told_to_anybody_is_refused(scene):
    with pytest.raises(InvalidArgumentError, match="expected UTF-8 text for 'region name'"):
        scene.regions.register("\udcff", "k", 0, 1)

    assert scene.changes == []


def test_number_of_regions_is_limited():
    scene = Scene(max_count=2)
    scene.regions.register("a", "k", 0, 1)
    scene.regions.register("b", "k", 0, 1)

    with pytest.raises(UnavailableError, match="2 regions are registered already"):
        scene.regions.register("c", "k", 0, 1)


def test_unregistering_all_or_unknown_ones_tells_what_has_changed(scene):
    for name in "abc":
        scene.regions.register(name, "k", 0, 1)
    scene.changes.clear()

    scene.regions.unregister("unknown")
    scene.regions.unregister()
    scene.regions.unregister()

    assert scene.changes == [([], ["a", "b", "c"])]
    assert len(scene.regions) == 0


def test_file_is_closed_after_the_last_request_that_uses_it(scene):
    scene.regions.register("r", "k", 0, SIZE)
    used = scene.regions.find(RegionPlace("r", 0, 4))
    closed = weakref.ref(scene.file)
    scene.file = FakeFile()

    scene.regions.unregister("r")
    scene.regions.register("r", "k", 50, 4)  # the name is free at once
    gc.collect()
    assert closed() is not None
    memory = bytearray(4)
    used.read_into(memoryview(memory))
    del used
    gc.collect()

    assert memory == bytes([0, 1, 2, 3])
    assert closed() is None


def test_errors_name_the_kind_of_memory(scene):
    scene.regions.register("r", "k", 0, 1)

    with pytest.raises(NotFoundError, match="Unable to find system shared memory region: 'x'"):
        scene.regions.system_regions("x")
    with pytest.raises(NotFoundError, match="Unable to find cuda shared memory region: 'x'"):
        scene.regions.cuda_regions("x")
    with pytest.raises(NotFoundError, match="'r' is registered as system shared memory, not CUDA"):
        scene.regions.cuda_regions("r")
    with pytest.raises(NotFoundError, match="Unable to find shared memory region: 'x'"):
        scene.regions.find(RegionPlace("x", 0, 1))


def test_object_that_has_shrunk_fails_the_request_and_does_not_grow(scene):
    scene.regions.register("r", "k", 10, 50)
    used = scene.regions.find(RegionPlace("r", 5, 20))
    del scene.file.content[25:]

    with pytest.raises(InvalidArgumentError, match="expected 20 bytes at offset 15 of 'k', got 10"):
        used.read_into(memoryview(bytearray(20)))
    with pytest.raises(InvalidArgumentError, match="made smaller after it was registered"):
        used.write(bytes(20))

    assert scene.file.size == 25


def test_full_memory_fails_the_request(scene):
    scene.regions.register("r", "k", 0, SIZE)
    scene.file.write_error = OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        InternalError, match="failed to write to shared memory region 'r': No space"
    ):
        scene.regions.find(RegionPlace("r", 0, 4)).write(b"1234")


NUMBERS = (
    st.integers(0, MAX_SIZE) | st.integers(0, 2 * SIZE) | st.integers(MAX_SIZE - SIZE, MAX_SIZE)
)


@given(offset=NUMBERS, byte_size=NUMBERS)
@example(offset=MAX_SIZE, byte_size=1)
@example(offset=1, byte_size=MAX_SIZE)
@example(offset=2**63, byte_size=2**63)
def test_only_regions_inside_their_object_are_registered(offset, byte_size):
    scene = Scene()
    fits = byte_size > 0 and offset + byte_size <= SIZE

    if fits:
        scene.regions.register("r", "k", offset, byte_size)
        assert len(scene.regions) == 1
    else:
        with pytest.raises(InvalidArgumentError, match="region 'r': invalid args"):
            scene.regions.register("r", "k", offset, byte_size)


@given(
    start=st.integers(0, SIZE - 1), length=st.integers(1, SIZE), offset=NUMBERS, byte_size=NUMBERS
)
@example(start=0, length=SIZE, offset=2**64 - 8, byte_size=16)
@example(start=50, length=50, offset=49, byte_size=2)
@example(start=0, length=SIZE, offset=0, byte_size=0)
def test_only_places_inside_their_region_are_found(start, length, offset, byte_size):
    scene = Scene()
    length = min(length, SIZE - start)
    scene.regions.register("r", "k", start, length)
    fits = offset < length and offset + byte_size <= length and offset + byte_size > 0

    place = RegionPlace("r", offset, byte_size)
    if fits:
        memory = bytearray(byte_size)
        scene.regions.find(place).read_into(memoryview(memory))
        assert memory == bytes(range(start + offset, start + offset + byte_size))
    else:
        with pytest.raises(InvalidArgumentError, match=r"region:? 'r'"):
            scene.regions.find(place)


# GPU memory

HANDLE = bytes(range(64))


@pytest.fixture
def gpu_scene():
    scene = Scene()
    scene.regions._find_devices = lambda: (0, 1)
    return scene


def test_cuda_region_is_listed_and_found(gpu_scene):
    regions = gpu_scene.regions
    regions.register_cuda("b", HANDLE, 1, 100)
    regions.register_cuda("a", HANDLE, 0, 50)
    place = regions.find(RegionPlace("b", 10, 90))

    assert [region.name for region in regions.cuda_regions()] == ["a", "b"]
    assert (place.handle, place.device, place.region_size) == (HANDLE, 1, 100)
    assert (place.offset, place.size) == (10, 90)
    assert regions.system_regions() == []
    assert gpu_scene.changes == [(["b"], []), (["a"], [])]
    assert gpu_scene.opened == []


def test_cuda_region_is_refused_without_a_gpu(scene):
    with pytest.raises(InvalidArgumentError, match="region: 'r', GPUs not supported"):
        scene.regions.register_cuda("r", HANDLE, 0, 1)


@pytest.mark.parametrize(
    "name, handle, device, byte_size, reason",
    [
        ("", HANDLE, 0, 1, "'region name' is necessary to register cuda"),
        ("r", HANDLE[1:], 0, 1, "expected a handle of 64 bytes, got 63"),
        ("r", HANDLE, 2, 1, r"expected one of the devices \[0, 1\], got 2"),
        ("r", HANDLE, -1, 1, "got -1"),
        ("r", HANDLE, 0, 0, "invalid args"),
        ("r", HANDLE, 0, 2**63, "invalid args"),
    ],
)
def test_wrong_cuda_region_is_refused(gpu_scene, name, handle, device, byte_size, reason):
    with pytest.raises(InvalidArgumentError, match=reason):
        gpu_scene.regions.register_cuda(name, handle, device, byte_size)

    assert gpu_scene.changes == []


@pytest.mark.parametrize("place", [RegionPlace("r", 100, 1), RegionPlace("r", 50, 51)])
def test_part_outside_of_a_cuda_region_is_refused(gpu_scene, place):
    gpu_scene.regions.register_cuda("r", HANDLE, 0, 100)
    with pytest.raises(InvalidArgumentError, match="Invalid offset"):
        gpu_scene.regions.find(place)


def test_names_are_common_to_both_kinds_and_each_is_unregistered_by_its_own(gpu_scene):
    regions = gpu_scene.regions
    regions.register_cuda("c", HANDLE, 0, 1)
    regions.register("s", "k", 0, 1)
    with pytest.raises(AlreadyExistsError):
        regions.register("c", "k", 0, 1)
    with pytest.raises(AlreadyExistsError):
        regions.register_cuda("s", HANDLE, 0, 1)
    with pytest.raises(NotFoundError, match="'c' is registered as CUDA shared memory, not system"):
        regions.system_regions("c")
    regions.unregister("c")
    regions.unregister_cuda("s")
    assert len(regions) == 2
    regions.unregister()
    assert [region.name for region in regions.cuda_regions()] == ["c"]
    regions.unregister_cuda()

    assert len(regions) == 0


def test_cuda_regions_count_as_others_do():
    scene = Scene(max_count=1)
    scene.regions._find_devices = lambda: (0,)
    scene.regions.register_cuda("a", HANDLE, 0, 1)

    with pytest.raises(UnavailableError, match="1 regions are registered already"):
        scene.regions.register_cuda("b", HANDLE, 0, 1)
