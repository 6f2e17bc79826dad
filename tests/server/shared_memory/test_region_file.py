# SPDX-License-Identifier: Apache-2.0
"""Reading and writing real objects of shared memory, also those that change meanwhile."""

from __future__ import annotations

import os
import pathlib
import sys
import uuid

import pytest

from pytriton.server.shared_memory.region_file import MappedFile, ReadFile, open_file

FOLDER = pathlib.Path("/dev/shm")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="objects are files in /dev/shm on Linux only"
)


@pytest.fixture
def path():
    """The path of an object of 8 bytes."""
    made = FOLDER / f"pytriton-test-{uuid.uuid4().hex}"
    made.write_bytes(b"abcdefgh")
    yield made
    if made.is_dir() and not made.is_symlink():
        made.rmdir()
    else:
        made.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", [ReadFile, MappedFile])
def test_object_is_read_and_written_at_offsets(path, kind):
    file = kind(os.open(path, os.O_RDWR))
    memory = bytearray(3)

    count = file.read_into(memoryview(memory), 2)
    file.write(b"XY", 5)

    assert (count, bytes(memory)) == (3, b"cde")
    assert path.read_bytes() == b"abcdeXYh"
    assert file.size == 8


@pytest.mark.parametrize("kind", [ReadFile, MappedFile])
def test_read_beyond_the_end_is_short(path, kind):
    file = kind(os.open(path, os.O_RDWR))

    assert file.read_into(memoryview(bytearray(5)), 6) == 2


def test_object_that_was_truncated_is_read_short_and_kills_nobody(path):
    file = open_file(path.name)
    os.truncate(path, 0)

    assert file.read_into(memoryview(bytearray(8)), 0) == 0
    assert file.size == 0


def test_object_without_a_name_is_read(path):
    file = open_file(path.name)
    path.unlink()
    memory = bytearray(8)

    file.read_into(memoryview(memory), 0)

    assert bytes(memory) == b"abcdefgh"


def test_descriptor_is_closed_with_the_object(path):
    file = open_file(path.name)
    descriptor = file.descriptor
    assert not os.get_inheritable(descriptor)

    del file

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def replace_by_fifo(path):
    os.mkfifo(path)


def replace_by_folder(path):
    path.mkdir()


def replace_by_link(path):
    path.symlink_to("/etc/hostname")


def replace_by_nothing(path):
    pass


@pytest.mark.parametrize(
    "replace", [replace_by_fifo, replace_by_folder, replace_by_link, replace_by_nothing]
)
def test_only_ordinary_objects_are_opened(path, replace):
    path.unlink()
    replace(path)

    with pytest.raises(OSError):
        open_file(path.name)
