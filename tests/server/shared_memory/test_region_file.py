# SPDX-License-Identifier: Apache-2.0
"""Reading and writing real objects of shared memory, also those that change meanwhile."""

from __future__ import annotations

import os
import pathlib
import platform
import signal
import subprocess
import sys
import uuid

import pytest

from pytriton.serving.server.shared_memory.region_file import LinuxFile, MappedFile, open_file

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


@pytest.mark.parametrize("kind", [LinuxFile, MappedFile])
def test_object_is_read_and_written_at_offsets(path, kind):
    file = kind(os.open(path, os.O_RDWR))
    memory = bytearray(3)

    count = file.read_into(memoryview(memory), 2)
    file.write(b"XY", 5)

    assert (count, bytes(memory)) == (3, b"cde")
    assert path.read_bytes() == b"abcdeXYh"
    assert file.size == 8


@pytest.mark.parametrize("kind", [LinuxFile, MappedFile])
def test_read_beyond_the_end_is_short(path, kind):
    assert kind(os.open(path, os.O_RDWR)).read_into(memoryview(bytearray(5)), 6) == 2


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


LARGE = bytes(range(251)) * 4096  # it is mapped, and no power of two


def test_large_parts_are_copied_whole(path):
    path.write_bytes(LARGE)
    file = open_file(path.name)
    memory = bytearray(len(LARGE) - 12)

    count = file.read_into(memoryview(memory), 5)
    file.write(memoryview(LARGE)[: 1 << 19], 3)

    assert (count, bytes(memory)) == (len(memory), LARGE[5:-7])
    assert path.read_bytes() == LARGE[:3] + LARGE[: 1 << 19] + LARGE[3 + (1 << 19) :]


def test_object_that_was_mapped_may_shrink_and_grow(path):
    path.write_bytes(LARGE)
    file = open_file(path.name)
    memory = memoryview(bytearray(len(LARGE)))
    file.read_into(memory, 0)

    os.truncate(path, len(LARGE) // 2)
    short = file.read_into(memory, 0)
    path.write_bytes(2 * LARGE)
    again = file.read_into(memory, len(LARGE))

    assert (short, again, file.size) == (len(LARGE) // 2, len(LARGE), 2 * len(LARGE))
    assert bytes(memory) == LARGE


GUARDED = """
import ctypes, mmap, os, sys, threading
from pytriton.serving.server.shared_memory.region_file import GuardedMapping

path, size = sys.argv[1], 1 << 20
descriptor = os.open(path, os.O_RDWR)
os.ftruncate(descriptor, size)
memory = (ctypes.c_char * size)()
mapping, other = (GuardedMapping(descriptor, size) for _ in range(2))
assert mapping.read(0, ctypes.addressof(memory), size)
plain = mmap.mmap(descriptor, size)
os.ftruncate(descriptor, 4096)
"""


def run_guarded(path, script, before=""):
    return subprocess.run(
        [sys.executable, "-c", before + GUARDED + script, path],
        capture_output=True,
        text=True,
        check=False,
    )


def test_copy_of_memory_that_has_shrunk_fails_and_kills_nobody(path):
    done = run_guarded(
        path,
        """
assert not mapping.read(0, ctypes.addressof(memory), size)
assert not other.write(0, ctypes.addressof(memory), size)
results = []
os.ftruncate(descriptor, size)
third = GuardedMapping(descriptor, size)
os.ftruncate(descriptor, 0)
thread = threading.Thread(
    target=lambda: results.append(third.read(0, ctypes.addressof(memory), size))
)
thread.start()
thread.join()
assert results == [False]
print(os.fstat(descriptor).st_size)
""",
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_bus_error_of_other_memory_ends_the_process_as_ever(path):
    assert run_guarded(path, "print(plain[8192])").returncode == -signal.SIGBUS


def test_bus_error_of_the_other_side_of_a_copy_ends_the_process_as_ever(path):
    done = run_guarded(
        path,
        """
small = os.memfd_create("m")
os.ftruncate(small, size)
mapping = GuardedMapping(small, size)
target = ctypes.addressof(ctypes.c_char.from_buffer(plain))
mapping.read(0, target, size)
""",
    )

    assert done.returncode == -signal.SIGBUS


FATAL = """
import faulthandler
faulthandler.enable()
"""
COPIES = """
assert not mapping.read(0, ctypes.addressof(memory), size)
print("survived", flush=True)
"""


def test_copy_fails_and_kills_nobody_if_the_process_reports_fatal_signals(path):
    before = run_guarded(path, COPIES, before=FATAL)
    later = run_guarded(path, FATAL + COPIES)

    assert (before.returncode, before.stdout, before.stderr) == (0, "survived\n", "")
    assert (later.returncode, later.stdout, later.stderr) == (0, "survived\n", "")


def test_fatal_bus_error_is_reported_as_ever_after_a_copy_has_failed(path):
    done = run_guarded(path, COPIES + "print(plain[8192])", before=FATAL)

    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "survived\n")
    assert done.stderr.count("Fatal Python error: Bus error") == 1
    assert 'File "<string>", line' in done.stderr


HANDLER = """
class Information(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("number", "error", "code", "padding")]
    _fields_ += [("address", ctypes.c_void_p)]


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(Information), ctypes.c_void_p)
def on_bus_error(number, information, context):
    start = ctypes.addressof(ctypes.c_char.from_buffer(plain))
    print(information.contents.address - start, flush=True)
    os._exit(7)


class Action(ctypes.Structure):  # as x86_64 and aarch64 have it
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_char * 128)]
    _fields_ += [("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


SA_SIGINFO = 4
action = Action(handler=ctypes.cast(on_bus_error, ctypes.c_void_p), flags=SA_SIGINFO)
assert ctypes.CDLL(None).sigaction(7, ctypes.byref(action), None) == 0
"""


@pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"}, reason="its structures are of two processors"
)
def test_handler_of_another_library_gets_its_own_bus_errors_with_all_that_is_known(path):
    before = run_guarded(path, COPIES + "print(plain[8192])", before="import ctypes, os" + HANDLER)
    later = run_guarded(path, HANDLER + COPIES + "print(plain[8192])")

    assert (before.returncode, before.stdout, before.stderr) == (7, "survived\n8192\n", "")
    assert (later.returncode, later.stdout, later.stderr) == (7, "survived\n8192\n", "")


@pytest.mark.parametrize("part", ["size, 1", "0, size + 1", "-1, 2"])
def test_copy_beyond_a_mapping_is_refused(path, part):
    offset, count = part.split(", ")

    done = run_guarded(path, f"mapping.read({offset}, ctypes.addressof(memory), {count})")

    assert "ValueError: expected a part of 1048576 bytes" in done.stderr
