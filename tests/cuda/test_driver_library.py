# SPDX-License-Identifier: Apache-2.0
"""The calls of CUDA's driver by ctypes, on a library that stands for it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from pytriton.runtime.cuda import driver as cuda_driver
from tests.cuda.fake_library import environment, library_folder, needs_compiler
from tests.e2e.waiting import DEADLINE_S

pytestmark = needs_compiler

HEADER = """
import ctypes, json, os, sys
import numpy as np
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.driver import CudaError
PATH = {path!r}
def fake():
    return ctypes.CDLL(PATH)
def code_of(call, *arguments):
    try:
        call(*arguments)
    except CudaError as error:
        return [error.call, error.code, str(error)]
"""


def run(program, **variables):
    """What a program prints, as JSON, in a process of its own: a library cannot be unloaded."""
    header = HEADER.format(path=str(library_folder() / "libcuda.so.1"))
    result = subprocess.run(
        [sys.executable, "-c", header + textwrap.dedent(program)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_library_that_nobody_has_loaded_is_not_found():
    result = run("""
        found = cuda_driver.find_loaded()
        with open("/proc/self/maps") as maps:
            print(json.dumps([found is None, "libcuda" in maps.read()]))
    """)

    assert result == [True, False]


def test_library_that_was_loaded_is_found_and_not_initialised():
    result = run("""
        library = fake()
        driver = cuda_driver.find_loaded()
        print(json.dumps([code_of(driver.active_devices)[:2], library.fake_cuda_count(b"cuInit")]))
    """)

    assert result == [["cuDeviceGetCount", cuda_driver.NOT_INITIALIZED], 0]


def test_devices_count_as_active_once_something_uses_their_context():
    result = run(
        """
        driver = cuda_driver.load()
        before = driver.active_devices()
        with driver.using(1):
            during = driver.active_devices()
        print(json.dumps([before, during, driver.active_devices()]))
        """,
        FAKE_CUDA_DEVICES="3",
    )

    assert result == [[], [1], []]


def test_context_that_is_current_is_not_made_so_again():
    result = run(
        """
        library, driver = fake(), cuda_driver.load()
        with driver.using(0):
            with driver.using(0), driver.using(1):
                during = driver.active_devices()
            driver.allocate(256)  # which needs the context that was current before
        pushed = library.fake_cuda_count(b"cuCtxPushCurrent_v2")
        print(json.dumps([during, pushed, driver.active_devices()]))
        """,
        FAKE_CUDA_DEVICES="2",
    )

    assert result == [[0, 1], 2, []]


def test_context_that_the_program_has_made_current_is_left_to_it():
    result = run("""
        library, driver = fake(), cuda_driver.load()
        with driver.using(0):
            pass
        driver.make_current(0)
        for _ in range(3):
            with driver.using(0):
                address = driver.allocate(256)
        driver.free(address)  # it still is current
        print(json.dumps(library.fake_cuda_count(b"cuCtxPushCurrent_v2")))
    """)

    assert result == 1


def test_memory_is_registered_and_unregistered():
    result = run("""
        library, driver = fake(), cuda_driver.load()
        memory = np.zeros(1 << 20, np.uint8)
        address = memory.ctypes.data
        with driver.using(0):
            driver.register_host(address, memory.nbytes)
            again = code_of(driver.register_host, address, 4096)[1]
            during = library.fake_cuda_registered_bytes()
            driver.unregister_host(address)
            after = library.fake_cuda_registered_bytes()
            missing = code_of(driver.unregister_host, address)[1]
        print(json.dumps([again, during, after, missing]))
    """)

    assert result == [
        cuda_driver.HOST_MEMORY_ALREADY_REGISTERED,
        1 << 20,
        0,
        cuda_driver.HOST_MEMORY_NOT_REGISTERED,
    ]


def test_draining_leaves_nothing_registered():
    result = run("""
        import mmap
        library, driver = fake(), cuda_driver.load()
        page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
        with driver.using(0):
            driver.drain(page.ctypes.data)
            driver.drain(page.ctypes.data)
        counts = [library.fake_cuda_count(name) for name in
                  (b"cuMemHostRegister_v2", b"cuMemHostUnregister", b"cuCtxSynchronize")]
        print(json.dumps([counts, library.fake_cuda_registered_bytes()]))
    """)

    assert result == [[2, 2, 0], 0]


def test_bytes_go_to_the_device_and_back():
    result = run("""
        driver = cuda_driver.load()
        source, target = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
        with driver.using(0):
            first, second = driver.allocate(256), driver.allocate(4096)
            driver.copy_to_device(first, source.ctypes.data, 256)
            driver.copy_on_device(second + 100, first, 256)
            driver.synchronize()
            driver.copy_to_host(target.ctypes.data, second + 100, 256)
            extent = driver.extent_of(second + 100) == (second, 4096)
            device = driver.device_of(second)
            driver.free(first), driver.free(second)
            freed = code_of(driver.free, first)[1]
        print(json.dumps([bool((source == target).all()), extent, device, freed]))
    """)

    assert result == [True, True, 0, cuda_driver.INVALID_VALUE]


def test_other_process_opens_exported_memory_until_it_is_closed():
    result = run("""
        import subprocess
        driver, library = cuda_driver.load(), fake()
        if len(sys.argv) > 1:
            library.fake_cuda_opened_count.restype = ctypes.c_int
            target = np.zeros(4, np.uint8)
            with driver.using(0):
                place = driver.open_memory(bytes.fromhex(sys.argv[1]))
                same = driver.open_memory(bytes.fromhex(sys.argv[1])) == place
                driver.copy_to_host(target.ctypes.data, place, 4)
                driver.close_memory(place)
                one = library.fake_cuda_opened_count()
                driver.close_memory(place)
                none = library.fake_cuda_opened_count()
            print(json.dumps([target.tolist(), same, one, none]))
            sys.exit()
        with driver.using(0):
            place = driver.allocate(1 << 16)
            data = np.array([1, 2, 3, 4], np.uint8)
            driver.copy_to_device(place, data.ctypes.data, 4)
            handle = driver.export_memory(place)
            own = code_of(driver.open_memory, handle)[1]
            with open("/proc/self/cmdline", "rb") as line:
                program = line.read().split(bytes(1))[2].decode()
            command = [sys.executable, "-c", program, handle.hex()]
            answer = json.loads(subprocess.check_output(command))
            driver.free(place)
            gone = code_of(driver.open_memory, handle)[1]
        print(json.dumps([answer, own, gone]))
    """)

    assert result == [
        [[1, 2, 3, 4], True, 1, 0],
        cuda_driver.INVALID_CONTEXT,
        cuda_driver.INVALID_VALUE,
    ]


def test_handle_of_another_size_never_reaches_the_driver():
    result = run("""
        library, driver = fake(), cuda_driver.load()
        try:
            driver.open_memory(b"short")
        except ValueError as error:
            print(json.dumps([str(error), library.fake_cuda_count(b"cuIpcOpenMemHandle_v2")]))
    """)

    assert result == ["expected a handle of 64 bytes, got 5", 0]


def test_error_has_its_call_its_code_and_its_name():
    result = run("""
        library, driver = fake(), cuda_driver.load()
        library.fake_cuda_fail(b"cuCtxSynchronize", 719)
        with driver.using(0):
            print(json.dumps(code_of(driver.synchronize)))
    """)

    assert result == [
        "cuCtxSynchronize",
        719,
        "CUDA's driver failed at cuCtxSynchronize with error 719 (CUDA_ERROR_LAUNCH_FAILED)",
    ]


def test_context_is_left_as_it_was_after_an_error():
    result = run("""
        library, driver = fake(), cuda_driver.load()
        library.fake_cuda_fail(b"cuMemAlloc_v2", 2)
        def allocate():
            with driver.using(0):
                driver.allocate(10)
        code = code_of(allocate)[1]
        names = ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRetain",
                 "cuDevicePrimaryCtxRelease_v2")
        counts = [library.fake_cuda_count(name.encode()) for name in names]
        print(json.dumps([code, counts, driver.active_devices()]))
    """)

    assert result == [2, [1, 1, 1, 1], []]


def test_old_driver_without_a_call_is_an_error_of_that_call():
    result = run("""
        driver = cuda_driver.LibraryDriver(ctypes.CDLL(None))
        print(json.dumps(code_of(driver.initialize)[:2]))
    """)

    assert result == ["cuInit", cuda_driver.NOT_FOUND]


def test_forked_process_gets_an_error_instead_of_a_crash():
    result = run("""
        import warnings
        warnings.simplefilter("ignore")
        driver = cuda_driver.load()
        reader, writer = os.pipe()
        if os.fork() == 0:
            codes = [code_of(cuda_driver.load)[1], code_of(driver.active_devices)[1]]
            os.write(writer, json.dumps(codes).encode())
            os._exit(0)
        os.wait()
        print(os.read(reader, 100).decode())
    """)

    assert result == [cuda_driver.NOT_INITIALIZED, cuda_driver.NOT_INITIALIZED]


def test_machine_without_devices_cannot_be_used():
    result = run("print(json.dumps(code_of(cuda_driver.load)[:2]))", FAKE_CUDA_DEVICES="0")

    assert result == ["cuInit", cuda_driver.NO_DEVICE]


def test_machine_without_a_driver_has_none(monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libnone.so.1")
    monkeypatch.setattr(cuda_driver, "_initialized", [])

    assert cuda_driver.find_loaded() is None
    with pytest.raises(OSError, match=r"libnone\.so\.1"):
        cuda_driver.load()
