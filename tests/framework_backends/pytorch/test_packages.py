# SPDX-License-Identifier: Apache-2.0
"""`.pt2` files in this process: programs of torch.export, and compiled ones if asked for.

Compiling takes a minute or two, so these tests run only with PYTRITON_TEST_AOTI=1.
"""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

from pytriton.base.errors import ErrorCode, InternalError, ServerError
from pytriton.testing import Request
from tests.framework_backends.pytorch.torch_models import config, loaded, script, tensor

torch = pytest.importorskip("torch")

NAME = "model.pt2"
INPUTS = ("ARGS[0]", "ARGS[1][0]", "ARGS[1][1][k]", "KWARGS[scale]", "KWARGStable[b]")
NUMBERS = [f"INPUT__{index}" for index in range(5)]
RESULTS = ("RESULT[sum]", "RESULT[more][0]", "OUTPUT__2")
X = np.arange(8, dtype=np.float32).reshape(2, 4)

needs_compiler = pytest.mark.skipif(
    not os.environ.get("PYTRITON_TEST_AOTI"), reason="compiles models: set PYTRITON_TEST_AOTI=1"
)


class Nested(torch.nn.Module):
    def forward(self, x, pair, *, scale, table):
        y = x * scale + pair[0] - pair[1]["k"]
        return {"sum": y + table["b"], "more": [y * 2, y.sum(1, keepdim=True)]}


def program():
    """A program that takes any number of rows of four numbers."""
    rows = torch.export.Dim("rows", min=1, max=64)
    # torch takes inputs that are the same tensor for one input.
    x, first, second, last = (torch.zeros(3, 4) for _ in range(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            Nested(),
            (x, (first, {"k": second})),
            {"scale": torch.ones(3, 1), "table": {"b": last}},
            dynamic_shapes={
                "x": {0: rows},
                "pair": ({0: rows}, {"k": {0: rows}}),
                "scale": {0: rows},
                "table": {"b": {0: rows}},
            },
        )


@pytest.fixture(scope="module")
def exported():
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program(), buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Made in a process of its own, as the compiler starts others."""
    path = tmp_path_factory.mktemp("aoti") / NAME
    code = (
        "import sys, torch\n"
        "from tests.framework_backends.pytorch.test_packages import program\n"
        "torch._inductor.aoti_compile_and_package(program(), package_path=sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, env={**os.environ})
    return path.read_bytes()


@pytest.fixture(params=["exported", pytest.param("compiled", marks=needs_compiler)])
def package(request):
    return request.getfixturevalue(request.param)


def settings(inputs=INPUTS, outputs=RESULTS, extra=""):
    return config(inputs, outputs, extra, platform="torch_aoti")


def request(x, inputs=INPUTS):
    values = (x, 2 * x, x, np.full((len(x), 1), 10, np.float32), np.ones_like(x))
    return dict(zip(inputs, values, strict=True))


@pytest.mark.parametrize("inputs", [INPUTS, NUMBERS, [*INPUTS[:3], *NUMBERS[3:]]])
def test_tensors_have_names_by_structure_or_numbers(tmp_path, package, inputs):
    with loaded(tmp_path, package, settings(inputs), NAME) as model:
        batch = [Request(request(X, inputs)), Request(request(X[:1], inputs))]
        answers = [each for (each,) in model.execute_batch(batch)]

    y = X * 10 + X
    assert np.array_equal(answers[0]["RESULT[sum]"], y + 1)
    assert np.array_equal(answers[0]["RESULT[more][0]"], y * 2)
    assert np.array_equal(answers[0]["OUTPUT__2"], y.sum(1, keepdims=True))
    assert np.array_equal(answers[1]["RESULT[sum]"], y[:1] + 1)


def test_shapes_are_checked(tmp_path, package):
    wrong = np.zeros((2, 5), np.float32)

    with (
        loaded(tmp_path, package, settings(), NAME) as model,
        pytest.raises(InternalError, match=r"PyTorch execute failure: (?s:.*)4") as raised,
    ):
        model.execute({**request(X), "ARGS[0]": wrong})

    assert raised.value.code is ErrorCode.INTERNAL


def test_types_are_checked(tmp_path, package):
    inputs = (tensor("ARGS[0]", "FP64"), *INPUTS[1:])

    with (
        loaded(tmp_path, package, settings(inputs), NAME) as model,
        pytest.raises(ServerError, match=r"dtype|datatype"),
    ):
        model.execute({**request(X), "ARGS[0]": X.astype(np.float64)})


@pytest.mark.parametrize(
    "inputs, outputs, text",
    [
        (("X", *INPUTS[1:]), RESULTS, 'Input "X" for model instance "m_0_0" is not found in model'),
        (INPUTS[:4], RESULTS, "configuration expects 4 inputs, but model expects 5 inputs."),
        (INPUTS, ("RESULT[1]",), 'Output "RESULT[1]" for model instance "m_0_0" is not found in'),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, package, inputs, outputs, text):
    with (
        pytest.raises(InternalError) as raised,
        loaded(tmp_path, package, settings(inputs, outputs), NAME),
    ):
        pass

    assert text in str(raised.value)


def test_other_files_are_refused(tmp_path):
    for content, text in (
        (b"nothing", "failed to load model 'm': File is not a zip file"),
        (b"version https://git-lfs.github.com/spec/v1", "a zip file (the file is a pointer of Git"),
        (
            script("x", "return x"),
            "expected a package of AOTInductor or an archive of torch.export",
        ),
    ):
        with pytest.raises(InternalError) as raised, loaded(tmp_path, content, settings(), NAME):
            pass

        assert text in str(raised.value)


class Touch:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self._path,)


@pytest.mark.parametrize("member", ["weights/weight_0", "sample_inputs/model.pt"])
def test_pickles_in_programs_are_not_run(tmp_path, member):
    source, changed, pickled = io.BytesIO(), io.BytesIO(), io.BytesIO()
    module = torch.nn.Linear(2, 2, bias=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.ones(1, 2),)), source)
    torch.save(Touch(tmp_path / "touched"), pickled)
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            data = pickled.getvalue() if name.endswith(f"data/{member}") else before.read(name)
            if member.startswith("weights"):
                data = data.replace(b'"use_pickle": false', b'"use_pickle": true')
            after.writestr(name, data)
    model = loaded(tmp_path, changed.getvalue(), settings(("ARGS[0]",), ("RESULT",)), NAME)

    with pytest.raises(InternalError) as raised, model:
        pass
    assert not (tmp_path / "touched").exists()
    assert "Weights only load failed" in str(raised.value)


def test_strings_are_refused(tmp_path):
    inputs = (tensor("ARGS[0]", "STRING"),)

    with (
        pytest.raises(InternalError, match="unsupported datatype TYPE_STRING for input"),
        loaded(tmp_path, b"", settings(inputs), NAME),
    ):
        pass
