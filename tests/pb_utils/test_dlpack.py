# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from triton_python_backend_utils import Tensor, TritonModelException

from pytriton.base import dtypes

TYPES = [row for row in dtypes.BY_NUMBER.values() if row is not dtypes.BYTES]


@pytest.mark.parametrize("row", TYPES, ids=lambda row: row.name)
@pytest.mark.parametrize("through", ["object", "capsule"])
def test_tensor_goes_through_dlpack_without_a_copy(row, through):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(row.numpy)
    tensor = Tensor("A", array)
    other = Tensor.from_dlpack("B", tensor if through == "object" else tensor.to_dlpack())

    assert other.name() == "B"
    assert other.to_wire()[0] is row
    assert other.as_numpy().tobytes() == array.tobytes()
    other.as_numpy()[1, 1] = 1
    assert array[1, 1] == row.numpy.type(1)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float16, np.float64])
def test_numpy_reads_a_tensor(dtype):
    array = np.array([1, 0, 1], dtype=dtype)

    np.testing.assert_array_equal(np.from_dlpack(Tensor("A", array)), array)


def test_tensor_shares_the_memory_of_a_numpy_array():
    array = np.arange(4, dtype=np.float32)
    tensor = Tensor.from_dlpack("A", array)
    array[0] = 7

    assert tensor.as_numpy()[0] == 7
    assert tensor.as_numpy().flags.writeable


def test_tensor_says_that_it_is_in_host_memory():
    assert Tensor("A", np.zeros(1)).__dlpack_device__() == (1, 0)


def test_capsule_holds_one_reference_to_the_tensor():
    tensor = Tensor("A", np.zeros(3))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()

    assert sys.getrefcount(tensor) == before + 1
    del capsule
    assert sys.getrefcount(tensor) == before


def test_importer_of_a_capsule_holds_the_tensor_until_its_last_array_is_gone():
    tensor = Tensor("A", np.zeros(3))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    importer = Tensor.from_dlpack("B", capsule)
    view = importer.as_numpy()[1:]
    del capsule, importer
    gc.collect()

    assert sys.getrefcount(tensor) == before + 1
    del view
    assert sys.getrefcount(tensor) == before


def test_memory_of_a_foreign_object_lives_as_long_as_the_tensor():
    array = np.arange(8, dtype=np.int16)
    owner = weakref.ref(array)
    tensor = Tensor.from_dlpack("A", array)
    del array
    gc.collect()

    assert owner() is not None
    assert tensor.as_numpy().tolist() == list(range(8))
    del tensor
    assert owner() is None


def test_capsule_can_be_used_once():
    capsule = Tensor("A", np.zeros(3)).to_dlpack()
    first = Tensor.from_dlpack("B", capsule)

    assert "used_dltensor" in repr(capsule)
    with pytest.raises(TritonModelException, match="only once"):
        Tensor.from_dlpack("C", capsule)
    assert first.shape() == [3]


@pytest.mark.parametrize("shape", [(0,), (2, 0), (1, 0, 3)])
def test_tensor_without_elements_keeps_its_shape(shape):
    tensor = Tensor.from_dlpack("A", Tensor("B", np.zeros(shape, np.float32)))

    assert tensor.shape() == list(shape)
    assert tensor.to_wire()[0] is dtypes.FP32


def test_scalar_keeps_its_shape():
    assert Tensor.from_dlpack("A", Tensor("B", np.array(2.5))).as_numpy() == 2.5


def test_offset_into_the_memory_is_followed():
    whole = np.arange(6, dtype=np.int32)

    assert Tensor.from_dlpack("A", whole[2:]).as_numpy().tolist() == [2, 3, 4, 5]


def test_stride_of_a_dimension_with_one_element_does_not_matter():
    array = np.arange(6).reshape(3, 2)[1:2]

    assert Tensor.from_dlpack("A", array).as_numpy().tolist() == [[2, 3]]


NO_TENSOR = "must be a DLPack capsule or have"
OUT_OF_ORDER = r"not contiguous.*C-Order"
REFUSED = {
    "nothing": (None, NO_TENSOR),
    "a number": (5, NO_TENSOR),
    "a list": ([1.0], NO_TENSOR),
    "an object": (object(), NO_TENSOR),
    "with a step": (np.arange(6)[::2], OUT_OF_ORDER),
    "transposed": (np.arange(6).reshape(2, 3).T, OUT_OF_ORDER),
    "columns": (np.arange(8).reshape(2, 4)[:, :2], OUT_OF_ORDER),
    "complex": (np.zeros(2, dtype=np.complex64), "type code 5 with 64 bits"),
}


@pytest.mark.parametrize("source, text", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_taken_is_refused(source, text):
    with pytest.raises(TritonModelException, match=text):
        Tensor.from_dlpack("A", source)


def test_names_are_checked_before_tensors():
    with pytest.raises(TritonModelException, match="cannot be an empty string"):
        Tensor.from_dlpack("", None)
    with pytest.raises(TypeError, match="name must be a str"):
        Tensor.from_dlpack(None, np.zeros(1))


@pytest.mark.parametrize("array", [np.array([b"x"]), np.array([b"x"], dtype=object)])
def test_texts_have_no_dlpack_form(array):
    with pytest.raises(TritonModelException, match=r"no?t have support for string tensors\."):
        Tensor("A", array).to_dlpack()


class OnDevice:
    def __init__(self, device_type):
        self._device_type = device_type

    def __dlpack_device__(self):
        return (self._device_type, 0)

    def __dlpack__(self):
        return Tensor("A", np.ones(1)).to_dlpack()


def test_pinned_memory_counts_as_host_memory():
    assert Tensor.from_dlpack("A", OnDevice(3)).is_cpu()


@pytest.mark.parametrize("device_type", [8, 10])
def test_other_devices_are_refused(device_type):
    with pytest.raises(
        TritonModelException, match=f"DLDevice type {device_type} is not support by Python backend"
    ):
        Tensor.from_dlpack("A", OnDevice(device_type))


def test_capsule_on_another_device_is_refused_and_stays_usable():
    capsule = Tensor("A", np.ones(1)).to_dlpack()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    device_type = ctypes.c_int32.from_address(get_pointer(capsule, b"dltensor") + 8)
    device_type.value = 10

    with pytest.raises(TritonModelException, match="DLDevice type 10"):
        Tensor.from_dlpack("A", capsule)
    device_type.value = 1
    assert Tensor.from_dlpack("A", capsule).shape() == [1]


def test_copy_is_made_where_it_is_wanted():
    array = np.zeros(2, dtype=np.float32)
    copy = Tensor.from_dlpack("B", Tensor("A", array).__dlpack__(copy=True))
    array[0] = 5

    assert copy.as_numpy().tolist() == [0, 0]


def test_another_device_cannot_be_asked_for():
    with pytest.raises(BufferError, match="not on"):
        Tensor("A", np.zeros(1)).__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize("is_used", [False, True])
def test_nothing_is_kept_of_tensors_that_are_gone(is_used):
    tensor = Tensor("A", np.ones(3, ml_dtypes.bfloat16))
    gone = weakref.ref(tensor)
    capsule = tensor.to_dlpack()
    del tensor
    assert gone() is not None
    kept = Tensor.from_dlpack("B", capsule) if is_used else None
    del capsule
    assert (gone() is not None) is is_used
    del kept

    assert gone() is None


def test_exception_passes_a_capsule_that_nobody_used():
    with pytest.raises(TypeError, match=r"int.. argument must be"):
        int(Tensor("A", np.ones(3)).to_dlpack())  # the capsule ends while this is raised


# A library that raises an exception, and releases a tensor while it does.
RAISING = """
extern void *PyExc_RuntimeError;
void PyErr_SetString(void *, const char *);
void *PyCapsule_GetPointer(void *, const char *);
int PyCapsule_SetName(void *, const char *);

struct managed {
    char tensor[48];
    void *context;
    void (*deleter)(struct managed *);
};

void release(void *capsule) {
    struct managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    PyCapsule_SetName(capsule, "used_dltensor");
    PyErr_SetString(PyExc_RuntimeError, "no driver");
    managed->deleter(managed);
}
"""


def test_exception_of_a_library_that_releases_a_tensor_is_its_own(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "raising.c").write_text(RAISING)
    library = tmp_path / "raising.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "raising.c"], check=True
    )
    release = ctypes.PyDLL(str(library)).release
    release.argtypes = [ctypes.py_object]
    tensor = Tensor("A", np.ones(3))
    gone = weakref.ref(tensor)
    capsule = tensor.to_dlpack()
    del tensor

    with pytest.raises(RuntimeError, match="no driver"):
        release(capsule)
    assert gone() is None


def test_exception_of_torch_is_its_own():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    tensor = torch.from_dlpack(Tensor("A", np.ones(3, np.float32)))
    with pytest.raises((RuntimeError, AssertionError)):
        tensor.cuda()
    with pytest.raises(RuntimeError):
        torch.from_dlpack(Tensor("A", np.ones(3, np.float32))).reshape(5)


OUTLIVING = """
import builtins
import numpy as np
from triton_python_backend_utils import Tensor
ours = Tensor("A", np.ones(3))
builtins.kept = [np.from_dlpack(ours), ours.to_dlpack(), Tensor.from_dlpack("B", np.ones(3))]
"""


def test_tensors_may_outlive_the_module_when_the_interpreter_ends():
    ended = subprocess.run(
        [sys.executable, "-c", OUTLIVING], capture_output=True, text=True, check=False, timeout=60
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_torch_shares_memory_both_ways():
    torch = pytest.importorskip("torch")
    ours = torch.from_dlpack(Tensor("A", np.arange(3, dtype=np.float32)))
    theirs = torch.arange(4, dtype=torch.bfloat16)
    tensor = Tensor.from_dlpack("B", torch.utils.dlpack.to_dlpack(theirs))
    theirs[0] = 9

    assert ours.tolist() == [0, 1, 2]
    assert tensor.as_numpy().astype(np.float32).tolist() == [9, 1, 2, 3]
