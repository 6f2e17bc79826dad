# SPDX-License-Identifier: Apache-2.0
"""Real sessions of ONNX Runtime, and the tensors that go in and out of them."""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from pytriton.base.dtypes import BY_CONFIG_NAME
from pytriton.base.errors import InternalError, UnavailableError, UnsupportedError
from pytriton.runtime.framework_backends.onnxruntime.model import (
    LargeOutputs,
    OnnxTensors,
    find_model_file,
)
from pytriton.runtime.framework_backends.onnxruntime.session import (
    available_providers,
    open_session,
)
from pytriton.runtime.framework_backends.onnxruntime.settings import SessionSettings
from pytriton.runtime.pb_utils.batch import Batch
from tests.framework_backends.onnxruntime import onnx_models
from tests.framework_backends.onnxruntime.onnx_models import TYPES, constant, model, node, tensor

CPU = [("CPUExecutionProvider", {})]


@pytest.fixture
def make_session(tmp_path):
    def make(made, **settings):
        path = onnx_models.write(made, tmp_path / "model.onnx")
        return open_session(str(path), SessionSettings(**settings), CPU)

    return make


def run_one(session, array):
    (output,) = session.run(["y"], {"x": array})
    return output


def test_signature_is_that_of_the_file(make_session):
    signature = make_session(onnx_models.overridable()).signature

    assert list(signature.inputs) == ["x"]
    assert list(signature.initializers) == ["scale"]
    assert (signature.outputs["y"].data_type, signature.outputs["y"].shape) == ("TYPE_FP32", (2,))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "STRING"])
def test_tensors_of_every_type_go_through(make_session, kind):
    session = make_session(onnx_models.single("Identity", kind=kind))
    array = np.array([[0, 1], [1, 0]]).astype(BY_CONFIG_NAME[f"TYPE_{kind}"].numpy)

    output = run_one(session, array)

    assert output.dtype == array.dtype
    assert output.tolist() == array.tolist()


def test_model_may_mix_bfloat16_with_other_types(make_session):
    session = make_session(
        model(
            [
                node("Cast", ["x"], ["y"], to=TYPES["FP32"]),
                node("Cast", ["w"], ["z"], to=TYPES["BF16"]),
            ],
            [tensor("x", ["n"], "BF16"), tensor("w", ["n"])],
            [tensor("y", ["n"]), tensor("z", ["n"], "BF16")],
        )
    )
    x, w = np.array([1.5], ml_dtypes.bfloat16), np.array([2.5, 3.5], np.float32)

    z, y = session.run(["z", "y"], {"x": x, "w": w})

    assert (y.dtype, y.tolist()) == (np.float32, [1.5])
    assert (z.dtype, z.tolist()) == (ml_dtypes.bfloat16, [2.5, 3.5])


@pytest.mark.parametrize("is_bound", [False, True])
def test_input_is_not_copied(make_session, is_bound):
    places = {"y": np.zeros(1, np.int64)} if is_bound else None
    session = make_session(
        model(
            [node("Shape", ["x"], ["y"])],
            [tensor("x", ["n"], "UINT8")],
            [tensor("y", [1], "INT64")],
        )
    )
    with tempfile.TemporaryFile() as sparse:
        size = 1 << 40  # no machine has the memory for a copy
        sparse.truncate(size)
        with mmap.mmap(sparse.fileno(), size) as mapped:
            array = np.frombuffer(mapped, np.uint8)

            (output,) = session.run(["y"], {"x": array}, places)

            assert output.tolist() == [size]

            del array


def test_output_is_not_copied_and_outlives_the_session(make_session):
    session = make_session(onnx_models.doubling())
    output = run_one(session, np.ones((3, 2), np.float32))
    del session

    assert not output.flags.owndata
    assert output.tolist() == [[2.0, 2.0]] * 3


def test_outputs_are_written_to_places_that_are_given(make_session):
    kinds = ["FP32", "BF16", "BOOL"]
    session = make_session(
        model(
            [node("Identity", [f"x{kind}"], [f"y{kind}"]) for kind in kinds],
            [tensor(f"x{kind}", ["n"], kind) for kind in kinds],
            [tensor(f"y{kind}", ["n"], kind) for kind in kinds],
        )
    )
    types = [BY_CONFIG_NAME[f"TYPE_{kind}"].numpy for kind in kinds]
    inputs = {
        f"x{kind}": np.array([0, 1]).astype(each) for kind, each in zip(kinds, types, strict=True)
    }
    places = {"yFP32": np.empty(2, np.float32), "yBF16": np.empty(2, ml_dtypes.bfloat16)}

    outputs = session.run([f"y{kind}" for kind in kinds], inputs, places)

    assert outputs[0] is places["yFP32"]
    assert outputs[1] is places["yBF16"]
    assert [each.tolist() for each in outputs] == [[0, 1], [0, 1], [False, True]]


def test_place_of_another_shape_is_refused(make_session):
    session = make_session(onnx_models.doubling())

    with pytest.raises(InternalError, match="onnx runtime error"):
        session.run(["y"], {"x": np.ones((1, 2), np.float32)}, {"y": np.empty((3, 2), np.float32)})


@pytest.mark.parametrize(
    "shape, max_batch_size, rows, expected",
    [
        (("n", 1 << 17), 8, [1, 2], (3, 1 << 17)),
        (("n", 1 << 16), 8, [2], (2, 1 << 16)),
        (("n", 1 << 16), 8, [1], None),  # only the whole batch of 8 would be large
        (("n", 16), 8, [8], None),
        (("n", None), 1 << 20, [1 << 20], None),
        ((1, 1 << 17), 0, [1], (1, 1 << 17)),
        ((1 << 10,), 0, [1], None),
        (("n",), 0, [1], None),
    ],
)
def test_large_outputs_of_known_shape_have_a_place(
    make_session, shape, max_batch_size, rows, expected
):
    signature = make_session(onnx_models.single("Abs", shape)).signature
    large = LargeOutputs({"max_batch_size": max_batch_size}, signature)

    places = large.allocate(Batch({}, rows, ["y"]))

    assert {name: array.shape for name, array in places.items()} == (
        {} if expected is None else {"y": expected}
    )
    assert LargeOutputs({"max_batch_size": 8}, signature).allocate(Batch({}, [8], [])) == {}


def test_outputs_of_ragged_batches_have_no_places(make_session):
    signature = make_session(onnx_models.single("Abs", ("n", 1 << 17))).signature
    scattered = {"max_batch_size": 8, "batch_output": [{"target_name": ["y"]}]}

    assert not LargeOutputs(scattered, signature)


@pytest.mark.parametrize("kinds", [("FP32", "STRING"), ("STRING", "FP32")])
def test_models_with_strings_have_no_places(make_session, kinds):
    source, target = kinds
    signature = make_session(
        model(
            [node("Cast", ["x"], ["y"], to=TYPES[target])],
            [tensor("x", [1 << 20], source)],
            [tensor("y", [1 << 20], target)],
        )
    ).signature

    assert not LargeOutputs({"max_batch_size": 0}, signature)


def test_strings_beside_bfloat16_are_refused(make_session):
    with pytest.raises(UnsupportedError, match="it takes strings and has tensors of BF16"):
        make_session(
            model(
                [node("Identity", ["x"], ["y"]), node("Identity", ["w"], ["z"])],
                [tensor("x", ["n"], "STRING"), tensor("w", ["n"], "BF16")],
                [tensor("y", ["n"], "STRING"), tensor("z", ["n"], "BF16")],
            )
        )


def test_inputs_that_are_not_contiguous_are_read_as_they_are(make_session):
    session = make_session(onnx_models.doubling())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]
    expected = [[0, 4], [8, 12]]

    assert run_one(session, x).tolist() == expected
    (output,) = session.run(["y"], {"x": x}, {"y": np.empty((2, 2), np.float32)})
    assert output.tolist() == expected


def test_settings_reach_the_session(make_session):
    session = make_session(
        onnx_models.doubling(),
        graph_level="ORT_DISABLE_ALL",
        is_parallel=True,
        intra_op_threads=2,
        inter_op_threads=3,
        memory_arena=False,
        memory_pattern=False,
        session_entries={"session.use_device_allocator_for_initializers": "1"},
        run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    )
    options = session._session.get_session_options()

    assert options.graph_optimization_level.name == "ORT_DISABLE_ALL"
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    key = "session.use_device_allocator_for_initializers"
    assert options.get_session_config_entry(key) == "1"


def test_entries_of_runs_reach_the_run(make_session):
    session = make_session(
        onnx_models.doubling(), run_entries={"memory.enable_memory_arena_shrinkage": "nonsense"}
    )

    with pytest.raises(InternalError, match="nonsense"):
        run_one(session, np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    "content, text",
    [
        (
            b"nonsense",
            r"onnx runtime error 7: Load model from .*model.onnx failed:Protobuf parsing failed.",
        ),
        (b"", r"onnx runtime error \d+: .*"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            r"onnx runtime error 7: .* parsing failed\. \(the file is a pointer of Git LFS: .*",
        ),
    ],
)
def test_wrong_files_are_refused_in_the_words_of_onnx_runtime(tmp_path, content, text):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    with pytest.raises(InternalError) as caught:
        open_session(str(path), SessionSettings(), CPU)

    assert re.fullmatch(text, caught.value.message, re.DOTALL)


def test_library_of_operators_must_be_there(make_session):
    with pytest.raises(InternalError, match=r"onnx runtime error \d+: .*missing\.so"):
        make_session(onnx_models.doubling(), operator_libraries=("missing.so",))


def test_failed_run_has_the_code_of_onnx_runtime(make_session):
    session = make_session(onnx_models.doubling())

    with pytest.raises(InternalError) as caught:
        run_one(session, np.ones((1, 3), np.float32))

    assert caught.value.message.startswith("onnx runtime error 2: Got invalid dimensions")


def test_what_is_not_a_tensor_is_refused(make_session):
    sequence = onnx_models.helper.make_tensor_sequence_value_info("y", TYPES["FP32"], None)

    with pytest.raises(UnsupportedError, match="ONNX_TYPE_SEQUENCE"):
        make_session(
            model([node("SequenceConstruct", ["x"], ["y"])], [tensor("x", [1])], [sequence])
        )


def test_provider_that_cannot_be_loaded_is_not_replaced_by_the_cpu(tmp_path, monkeypatch):
    path = onnx_models.write(onnx_models.doubling(), tmp_path / "model.onnx")
    loads = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loads.append("cuda"))
    wanted = [("CUDAExecutionProvider", {"device_id": "0"}), *CPU]

    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(UnavailableError) as caught,
    ):
        open_session(str(path), SessionSettings(), wanted)

    assert caught.value.message == "onnxruntime could not load CUDAExecutionProvider"
    assert loads == ["cuda"]


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(UnavailableError) as caught:
        available_providers()

    assert caught.value.message == (
        "backend 'onnxruntime' needs onnxruntime: pip install 'pytriton[onnxruntime]'"
    )


GLOBAL_POOL = """
import sys
import numpy as np
from pytriton.runtime.framework_backends.onnxruntime.session import open_session
from pytriton.runtime.framework_backends.onnxruntime.settings import read_settings

backend = {"enable-global-threadpool": "true", "intra_op_thread_count": "2"}
settings = read_settings({}, backend)
session = open_session(sys.argv[1], settings, [("CPUExecutionProvider", {})])
print(session.run(["y"], {"x": np.ones((1, 2), np.float32)})[0].tolist())
"""


def test_global_pool_serves_a_process(tmp_path):
    path = onnx_models.write(onnx_models.doubling(), tmp_path / "model.onnx")
    command = [sys.executable, "-c", GLOBAL_POOL, str(path)]

    done = subprocess.run(command, check=True, capture_output=True, text=True)

    assert done.stdout == "[[2.0, 2.0]]\n"


def test_file_of_a_model(tmp_path):
    (tmp_path / "model.onnx").touch()
    (tmp_path / "other.onnx").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.onnx").touch()
    special = {"name": "m", "cc_model_filenames": {"8.0": "other.onnx"}}

    def found(config, *capability):
        return find_model_file(config, str(tmp_path), *capability).removeprefix(f"{tmp_path}/")

    assert found({"name": "m"}) == "model.onnx"
    assert found({"name": "m", "default_model_filename": "folder"}) == "folder/model.onnx"
    assert found(special, "8.0") == "other.onnx"
    assert found(special, "9.0") == "model.onnx"
    assert found(special) == "model.onnx"
    with pytest.raises(UnavailableError) as caught:
        found({"name": "m", "default_model_filename": "none.onnx"})
    assert caught.value.message == (f"unable to find '{tmp_path}/none.onnx' for model instance 'm'")


def texts(*elements):
    return np.array(elements, object)


class Strings:
    """A model that returns its strings."""

    def __init__(self, make_session, **config):
        entries = {"input": [{"name": "x", "dims": [-1]}], "output": [{"name": "y", "dims": [-1]}]}
        self.session = make_session(
            onnx_models.single("Identity", ("n",) if config else ("n", "m"), "STRING")
        )
        self.tensors = OnnxTensors(
            {"max_batch_size": 8, **entries, **config}, self.session.signature
        )

    def run(self, batch):
        assert self.tensors.changes_inputs
        (output,) = self.session.run(["y"], self.tensors.prepare(batch))
        return output


def test_strings_keep_every_character(make_session):
    elements = [[b"", b"a\0b\0"], ["grüße \U0001f600".encode(), b"b'x'"]]
    output = Strings(make_session).run(Batch({"x": texts(*elements)}, [2], ["y"]))

    assert [[each.encode() for each in row] for row in output.tolist()] == elements


def test_bytes_that_are_not_utf_8_fail_their_own_request(make_session):
    array = texts([b"a", b"b"], [b"c", b"\xff"], [b"\xfe", b"\xfd"], [b"g", b"h"])
    batch = Batch({"x": array}, [1, 2, 1], ["y"])
    output = Strings(make_session).run(batch)

    assert output.tolist() == [["a", "b"], ["c", ""], ["", ""], ["g", "h"]]
    ((position, (text, code)),) = batch.failures.items()
    assert (position, code.name) == (1, "INVALID_ARG")
    assert text == (
        "expected UTF-8 in input 'x', because strings of ONNX Runtime have to be; element 1 is not"
    )


def test_ragged_strings_fail_the_right_request(make_session):
    ragged = {"input": [{"name": "x", "dims": [-1], "allow_ragged_batch": True}]}
    batch = Batch({"x": texts(b"a", b"b", b"\xff")}, [1, 1], ["y"], shapes={"x": [(1, 2), (1, 1)]})
    Strings(make_session, **ragged).run(batch)

    assert list(batch.failures) == [1]
    assert batch.failures[1][0].endswith("element 0 is not")


def test_scalars_lose_and_get_their_dimension(make_session):
    session = make_session(onnx_models.single("Abs", ()))
    config = {
        "input": [{"name": "x", "dims": [1]}],
        "output": [{"name": "y", "dims": [1, 1]}],
    }
    tensors = OnnxTensors(config, session.signature)
    batch = Batch({"x": np.array([-3], np.float32)}, [1], ["y"])

    y = run_one(session, tensors.prepare(batch)["x"])

    assert tensors.finish({"y": y}, batch)["y"].tolist() == [[3.0]]


def test_most_models_need_no_conversion(make_session):
    session = make_session(onnx_models.doubling())
    config = {"max_batch_size": 4, "output": [{"name": "y", "dims": [2]}]}
    tensors = OnnxTensors(config, session.signature)

    assert (tensors.changes_inputs, tensors.changes_outputs) == (False, False)


def test_optional_input_is_the_initializer_unless_it_is_given(make_session):
    session = make_session(onnx_models.overridable())
    x = np.array([1, 2], np.float32)

    (default,) = session.run(["y"], {"x": x})
    (given,) = session.run(["y"], {"x": x, "scale": np.array([10], np.float32)})

    assert (default.tolist(), given.tolist()) == ([3, 6], [10, 20])


def test_ragged_batch_has_counts_and_is_cut_like_its_source(make_session):
    session = make_session(
        model(
            [node("Add", ["x", "one"], ["y"]), node("Identity", ["counts"], ["z"])],
            [tensor("x", ["n"]), tensor("counts", ["m"])],
            [tensor("y", ["n"]), tensor("z", ["m"])],
            [constant("one", np.float32(1))],
        )
    )
    config = {
        "max_batch_size": 8,
        "input": [{"name": "x", "dims": [-1], "allow_ragged_batch": True}],
        "output": [{"name": "y", "dims": [-1]}, {"name": "z", "dims": [1]}],
        "batch_input": [
            {
                "kind": "BATCH_ACCUMULATED_ELEMENT_COUNT",
                "target_name": ["counts"],
                "data_type": "TYPE_FP32",
                "source_input": ["x"],
            }
        ],
        "batch_output": [
            {
                "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
                "target_name": ["y"],
                "source_input": ["x"],
            }
        ],
    }
    tensors = OnnxTensors(config, session.signature)
    x = np.arange(3, dtype=np.float32)
    batch = Batch({"x": x}, [1, 1], ["y", "z"], shapes={"x": [(1, 2), (1, 1)]})

    y, z = session.run(["y", "z"], tensors.prepare(batch))
    outputs = tensors.finish({"y": y, "z": z}, batch)

    assert z.tolist() == [2.0, 3.0]
    assert [part.tolist() for part in outputs["y"]] == [[[1.0, 2.0]], [[3.0]]]
