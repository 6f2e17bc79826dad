# SPDX-License-Identifier: Apache-2.0
"""The stand-in for `libtritonserver.so` that is written at run time, and reading libraries."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import subprocess
import sys
import weakref

import pytest

from pytriton.base.errors import UnsupportedError
from pytriton.runtime.native_backend import stub
from pytriton.runtime.native_backend.callbacks import Callbacks, exported
from pytriton.runtime.native_backend.server_objects import Errors
from pytriton.runtime.native_backend.stub import MACHINES, Library, NotALibraryError, stub_library

NAMES = ["TRITONSERVER_ErrorNew", "TRITONBACKEND_ModelName", "x"]
ON_LINUX = sys.platform == "linux" and os.uname().machine in MACHINES


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_library_of_every_machine_is_read_back(machine, tmp_path):
    path = tmp_path / "stub.so"
    path.write_bytes(stub_library("libx.so", NAMES, machine, {"x": bytes(20)}))
    library = Library(str(path))

    assert library.machine_number == machine.number
    assert library.undefined == []
    assert library.defined == {*NAMES, "pytriton_slots"}
    assert library.needed == []


@pytest.mark.skipif(not ON_LINUX, reason="compiled backends run on Linux only")
def test_functions_jump_to_their_slots(tmp_path):
    path = tmp_path / "stub.so"
    path.write_bytes(stub_library("libx.so", NAMES, stub.this_machine()))
    library = ctypes.CDLL(str(path))
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
    functions = [kind(lambda value, k=k: value * 10 + k) for k in range(len(NAMES))]
    slots = (ctypes.c_uint64 * len(NAMES)).in_dll(library, "pytriton_slots")
    for index, function in enumerate(functions):
        slots[index] = ctypes.cast(function, ctypes.c_void_p).value
    found = [kind((name, library))(4) for name in NAMES]

    assert found == [40, 41, 42]


@pytest.mark.skipif(not ON_LINUX, reason="there is a library of C to read")
def test_compiled_library_is_read(tmp_path):
    import _ctypes  # noqa: PLC0415  a module that is a library

    library = Library(_ctypes.__file__)

    assert library.machine_number == MACHINES[os.uname().machine].number
    assert "PyInit__ctypes" in library.defined
    assert "PyObject_CallObject" in library.undefined or "PyErr_SetString" in library.undefined
    assert any(each.startswith(("libffi", "libc.")) for each in library.needed)


def test_library_without_a_table_of_the_system_v_hash_is_read(tmp_path):
    compiler = "cc"
    source = tmp_path / "a.c"
    source.write_text("extern int b(void); int a(void) { return b(); } int c;\n")
    try:
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-Wl,--hash-style=gnu", "-o", "a.so", "a.c"],
            cwd=tmp_path,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    library = Library(str(tmp_path / "a.so"))

    assert {"a", "c"} <= library.defined
    assert "b" in library.undefined


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "it is not an ELF file"),
        (b"#!/bin/sh\n", "it is not an ELF file"),
        (b"\x7fELF\x01\x01", "expected a 64-bit little-endian ELF file, got 32-bit little-endian"),
        (b"\x7fELF\x02\x02", "got 64-bit big-endian"),
        (b"\x7fELF\x02\x01" + bytes(200), "its headers cannot be read"),
        (b"\x7fELF\x02\x01", "its headers cannot be read"),
    ],
)
def test_file_that_is_no_library_is_described(data, words, tmp_path):
    path = tmp_path / "libtriton_x.so"
    path.write_bytes(data)

    with pytest.raises(NotALibraryError, match=words):
        Library(str(path))


@pytest.mark.parametrize("place", [1 << 40, 2**64 - 1])
def test_library_whose_tables_point_nowhere_is_described(place, tmp_path):
    image = bytearray(stub_library("libx.so", NAMES, MACHINES["x86_64"]))
    struct.pack_into("<Q", image, 32, place)
    path = tmp_path / "broken.so"
    path.write_bytes(image)

    with pytest.raises(NotALibraryError, match="its headers cannot be read"):
        Library(str(path))


@pytest.mark.skipif(not ON_LINUX, reason="compiled backends run on Linux only")
@pytest.mark.parametrize("broken", ["_memory_file", None])
def test_stub_is_loaded_from_memory_or_from_a_folder_that_goes(broken, monkeypatch, tmp_path):
    def refuse(name):
        raise OSError(f"no file in memory for {name}")

    if broken:
        monkeypatch.setattr(stub, broken, refuse)
    monkeypatch.setattr(stub.tempfile, "tempdir", str(tmp_path))
    errors = Errors()
    soname = f"libtritonserver-{broken}.so"
    stub.load_stub(soname, ["TRITONSERVER_ErrorNew"], Callbacks(exported(errors), errors, print))
    loaded = ctypes.CDLL(soname)  # by its name, as a backend finds it
    loaded.TRITONSERVER_ErrorNew.restype = ctypes.c_uint64
    handle = loaded.TRITONSERVER_ErrorNew(3, b"from C")

    assert errors.read(handle).message == "from C"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not ON_LINUX, reason="compiled backends run on Linux only")
def test_functions_stay_when_python_collects_garbage():
    errors = Errors()
    callbacks = Callbacks(exported(errors), errors, print)
    kept = weakref.ref(callbacks)
    stub.load_stub("libtritonserver-kept.so", ["TRITONSERVER_ErrorNew"], callbacks)
    del callbacks
    gc.collect()

    assert kept() is not None


def test_other_systems_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(stub.sys, "platform", "darwin")
    monkeypatch.setattr(stub.platform, "system", lambda: "Darwin")

    with pytest.raises(UnsupportedError, match="run on Linux only, and this is Darwin"):
        stub.this_machine()


@pytest.mark.skipif(not ON_LINUX, reason="compiled backends run on Linux only")
def test_other_machines_and_c_libraries_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(stub, "_has_glibc", lambda: False)
    with pytest.raises(UnsupportedError, match="need a Python that uses the C library glibc"):
        stub.this_machine()
    monkeypatch.setattr(stub, "MACHINES", {"vax": None})

    with pytest.raises(UnsupportedError, match="run on vax only, and this machine is "):
        stub.this_machine()
