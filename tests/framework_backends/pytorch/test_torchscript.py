# SPDX-License-Identifier: Apache-2.0
"""TorchScript models in this process, without a server."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytriton.base.errors import ErrorCode, InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch import library
from pytriton.testing import Request
from tests.framework_backends.pytorch.torch_models import (
    Instance,
    config,
    loaded,
    parameters,
    script,
    tensor,
)

torch = pytest.importorskip("torch")

X = np.array([[1, 2, 3]], np.float32)
STRINGS = "reshape { shape: [] }"
TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
}


def answer(folder, content, settings, inputs):
    with loaded(folder, content, settings) as model:
        return model.execute(inputs)


def refusal(folder, content, settings, inputs):
    """The error of a request, as its client gets it."""
    with loaded(folder, content, settings) as model, pytest.raises(Exception) as raised:
        model.execute(inputs)
    return raised.value


def test_inputs_go_to_the_arguments_of_their_names(tmp_path):
    outputs = answer(
        tmp_path,
        script("x, y", "return x + y, x - y"),
        config(["y", "x"], ["difference__1", "sum__0"]),
        {"x": X, "y": 2 * X},
    )

    assert outputs["sum__0"].tolist() == [[3, 6, 9]]
    assert outputs["difference__1"].tolist() == [[-1, -2, -3]]


def test_inputs_go_by_number_or_by_order(tmp_path):
    content = script("x, y", "return x - y")

    by_number = answer(
        tmp_path, content, config(["A__1", "B__0"], ["Y"]), {"A__1": X, "B__0": 0 * X}
    )
    by_order = answer(tmp_path, content, config(["A", "B"], ["Y"]), {"A": X, "B": 0 * X})

    assert by_number["Y"].tolist() == [[-1, -2, -3]]
    assert by_order["Y"].tolist() == [[1, 2, 3]]


def test_one_dictionary_has_all_inputs(tmp_path):
    content = script("d: Dict[str, Tensor]", 'return d["a"] * 2 + d["b"]')

    outputs = answer(tmp_path, content, config(["a", "b"], ["Y"]), {"a": X, "b": X})

    assert outputs["Y"].tolist() == [[3, 6, 9]]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_goes_in_and_out(tmp_path, name):
    given = np.array([[0, 1, 1]]).astype(TYPES[name])
    settings = config([tensor("X", name)], [tensor("Y", name)])

    outputs = answer(tmp_path, script("x", "return x.reshape(-1, 3)"), settings, {"X": given})

    assert outputs["Y"].dtype == given.dtype
    assert outputs["Y"].tolist() == given.tolist()


def test_strings_are_lists_of_all_requests(tmp_path):
    content = script("s: List[str]", "return [each + '!' for each in s]")
    settings = config([tensor("S", "STRING", "1", STRINGS)], [tensor("T", "STRING", "1", STRINGS)])
    texts = [np.array([["a"], ["b\0c"]], object), np.array([["ä"]], object)]

    with loaded(tmp_path, content, settings) as model:
        answers = model.execute_batch([Request({"S": each}) for each in texts])

    assert answers[0][0]["T"].tolist() == [[b"a!"], [b"b\0c!"]]
    assert answers[1][0]["T"].tolist() == [["ä!".encode()]]


def test_strings_without_batching_keep_their_shape(tmp_path):
    content = script("x, s: List[str]", "return s, x, s")
    settings = config(["X", tensor("S", "STRING")], [tensor("T", "STRING"), "Y"], max_batch_size=0)

    outputs = answer(tmp_path, content, settings, {"X": X[0], "S": np.array([b"a", b"b"], object)})

    assert outputs["T"].tolist() == [b"a", b"b"]
    assert outputs["Y"].tolist() == [1, 2, 3]


def test_strings_that_are_not_utf8_fail_alone(tmp_path):
    content = script("s: List[str]", "return s")
    settings = config([tensor("S", "STRING", "1", STRINGS)], [tensor("T", "STRING", "1", STRINGS)])
    texts = [[[b"a"], [b"b"]], [[b"c"], [b"\xff"]], [["ä".encode()]]]

    with loaded(tmp_path, content, settings) as model:
        first, second, third = model.execute_batch(
            [Request({"S": np.array(each, object)}) for each in texts]
        )

    assert first[0]["T"].tolist() == texts[0]
    assert third[0]["T"].tolist() == texts[2]
    assert second[0].error.code() is ErrorCode.INVALID_ARG
    assert second[0].error.message() == (
        "expected UTF-8 in input 'S', because strings of PyTorch have to be; b'\\xff' is not"
    )


def test_results_that_are_not_contiguous_are_copied(tmp_path):
    outputs = answer(
        tmp_path,
        script("x", "return x.expand(2, 3).t()"),
        config(["X"], ["Y"], max_batch_size=0),
        {"X": X[0]},
    )

    assert outputs["Y"].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_a_model_may_change_its_input_and_keep_weights(tmp_path):
    content = script("x", "return x.add_(self.w), self.w", w=torch.ones(3))

    with loaded(tmp_path, content, config(["X"], ["Y", "W"], max_batch_size=0)) as model:
        first, second = (model.execute({"X": X[0].copy()}) for _ in range(2))

    assert first["Y"].tolist() == second["Y"].tolist() == [2, 3, 4]
    assert first["W"].tolist() == [1, 1, 1]


def test_empty_inputs_are_served(tmp_path):
    outputs = answer(
        tmp_path, script("x", "return x * 2"), config(["X"], ["Y"]), {"X": np.zeros((2, 0), "f4")}
    )

    assert outputs["Y"].shape == (2, 0)


@pytest.mark.parametrize(
    "body, text",
    [
        ("return [x]", "output must be of type Tensor or List[str], received List[Tensor]"),
        (
            "return (x, [1])",
            "output at index 1 must be of type Tensor or List[str], received List[int]",
        ),
        (
            "return {'a': x}",
            "output must be of type Tensor, List[str] or Tuple containing one of these two types.",
        ),
        (
            "return 1",
            "output must be of type Tensor, List[str] or Tuple containing one of these two types.",
        ),
    ],
)
def test_other_results_fail_the_request(tmp_path, body, text):
    error = refusal(tmp_path, script("x", body), config(["X"], ["Y"]), {"X": X})

    assert str(error).startswith(f"PyTorch execute failure: {text}")
    assert error.code is ErrorCode.INTERNAL


def test_failure_of_torch_fails_the_request(tmp_path):
    error = refusal(
        tmp_path, script("x", "return x @ torch.ones(2, 2)"), config(["X"], ["Y"]), {"X": X}
    )

    assert str(error).startswith("PyTorch execute failure: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in str(error)
    assert error.code is ErrorCode.INTERNAL


@pytest.mark.parametrize(
    "body, output, text",
    [
        (
            "return x",
            "Y__3",
            (
                "The output Y__3 in the model configuration refers to an output index which doesn't"
                " exist. This model has 1 outputs"
            ),
        ),
        (
            "return x.double()",
            "Y",
            "configuration expects datatype TYPE_FP32 for output 'Y', model provides TYPE_FP64",
        ),
        (
            "return torch.view_as_complex(x.reshape(-1, 1, 2))",
            "Y",
            (
                "configuration expects datatype TYPE_FP32 for output 'Y', model provides"
                " torch.complex64"
            ),
        ),
        (
            "return ['a']",
            "Y",
            "configuration expects datatype TYPE_FP32 for output 'Y', model provides TYPE_STRING",
        ),
        ("return x.sum()", "Y", "output 'Y' is a scalar which is not supported."),
    ],
)
def test_outputs_that_do_not_fit_fail_the_request(tmp_path, body, output, text):
    error = refusal(
        tmp_path, script("x", body), config(["X"], [output]), {"X": np.ones((1, 2), "f4")}
    )

    assert str(error) == text
    assert error.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    "content, settings, error, text",
    [
        (
            b"nothing",
            config(["X"], ["Y"]),
            InternalError,
            "failed to load model 'm': PytorchStreamReader failed reading zip archive",
        ),
        (
            None,
            config(["X", "Z"], ["Y"]),
            InvalidArgumentError,
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            None,
            config(["X"], ["Y"], "model_transaction_policy { decoupled: true }"),
            InvalidArgumentError,
            "model 'm' is decoupled",
        ),
    ],
)
def test_models_that_cannot_be_served_are_refused(tmp_path, content, settings, error, text):
    given = script("x", "return x") if content is None else content

    with pytest.raises(error) as raised, loaded(tmp_path, given, settings):
        pass

    assert str(raised.value).startswith(text)


def test_weights_alone_are_no_model(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "weights")
    content = (tmp_path / "weights").read_bytes()

    with (
        pytest.raises(InternalError, match=r"failed locating file constants\.pkl") as raised,
        loaded(tmp_path, content, config(["X"], ["Y"])),
    ):
        pass

    assert "(the file is of torch.save, " in str(raised.value)


@pytest.mark.parametrize("argument", ["n: int", "n: Optional[Tensor]", "n: Tuple[int, int]"])
def test_other_arguments_are_refused(tmp_path, argument):
    content = script(f"x, {argument}", "return x")

    with (
        pytest.raises(InternalError, match=r"An input of type '.*' was detected in the model\."),
        loaded(tmp_path, content, config(["X", "n"], ["Y"])),
    ):
        pass


def test_log_has_the_warnings(tmp_path):
    content = script("x", "return x", is_training=True)

    with loaded(tmp_path, content, config(["X__a"], ["Y__b"])) as model:
        lines = [line.message for line in model.logs if line.level == "WARNING"]

    assert any("input 'X__a' has no number" in line for line in lines)
    assert any("output 'Y__b' has no number" in line for line in lines)
    assert any("was saved in training mode" in line for line in lines)


def test_inference_mode_can_be_switched_off(tmp_path):
    content = script("x", "return torch.ones(1, 1) * (1 if x.is_inference() else 0)")

    on = answer(tmp_path, content, config(["X"], ["Y"]), {"X": X})
    off = answer(
        tmp_path, content, config(["X"], ["Y"], parameters(INFERENCE_MODE="off")), {"X": X}
    )

    assert on["Y"].tolist() == [[1]]
    assert off["Y"].tolist() == [[0]]


def test_states_and_controls_go_by_number(tmp_path):
    sequences = """
        sequence_batching {
          control_input [{ name: "START__2"
            control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }] }]
          state [{ input_name: "S__1" output_name: "S__1" data_type: TYPE_FP32 dims: [ 3 ]
            initial_state [{ name: "zero" zero_data: true data_type: TYPE_FP32 dims: [ 3 ] }] }]
        }
    """
    content = script("x, s, start", "return s + x + 10 * start, s + x")

    with loaded(tmp_path, content, config(["X__0"], ["Y__0"], sequences)) as model:
        answers = [
            model.execute({"X__0": X}, correlation_id=5, flags=flags)["Y__0"].tolist()
            for flags in (1, 0, 2)
        ]

    assert answers == [[[11, 12, 13]], [[2, 4, 6]], [[3, 6, 9]]]


def test_ragged_batches_are_flat(tmp_path):
    extra = """
        batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "N__1"
          data_type: TYPE_FP32 source_input: "X__0" }]
        batch_output [{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE
          target_name: "Y__0" source_input: "X__0" }]
    """
    settings = config([tensor("X__0", extra="allow_ragged_batch: true")], ["Y__0"], extra)
    content = script("x, n", "return x * n.numel()")

    with loaded(tmp_path, content, settings) as model:
        answers = model.execute_batch([Request({"X__0": X}), Request({"X__0": X[:, :1]})])

    assert [each["Y__0"].tolist() for (each,) in answers] == [[[2, 4, 6]], [[2]]]


@pytest.mark.parametrize("kind", ["CPU", "MODEL"])
def test_kinds_of_instances_without_a_gpu_run_on_the_cpu(tmp_path, kind):
    model = Instance(tmp_path, script("x", "return x * 2"), config(["X"], ["Y"]), kind=kind)

    assert model.execute({"X": X})["Y"].tolist() == [[2, 4, 6]]


class FakeTorch:
    """Records the settings of the process, which a test must not change for others."""

    def __init__(self):
        self.calls = {}
        self._C = self
        self.backends = self
        self.cudnn = self
        self.enabled = True

    def __getattr__(self, name):
        return lambda value: self.calls.update({name: value})


def test_parameters_are_settings_of_the_process():
    fake = FakeTorch()
    given = library.ScriptParameters(
        disables_optimized_execution=True,
        disables_cudnn=True,
        tensor_fuser=False,
        jit_profiling=True,
        jit_executor=False,
        intra_op_threads=3,
        inter_op_threads=2,
    )

    library.apply_parameters(fake, given)

    assert fake.enabled is False
    assert fake.calls == {
        "set_num_threads": 3,
        "set_num_interop_threads": 2,
        "_set_graph_executor_optimize": False,
        "_jit_set_texpr_fuser_enabled": False,
        "_jit_set_profiling_mode": True,
        "_jit_set_profiling_executor": False,
    }
    for name in fake.calls:
        if name.startswith("_"):
            assert hasattr(torch._C, name)


def test_without_parameters_nothing_is_set():
    fake = FakeTorch()

    library.apply_parameters(fake, library.ScriptParameters())

    assert fake.calls == {}
