# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import TritonModelException

MESSAGE = ": Failed to process the request for model 'model_0_0', message: "


def test_model_is_loaded(runtime):
    pb_utils.load_model(b"m")

    assert runtime.calls == [("load_model", {"name": "m", "config": "", "files": {}})]


def test_model_is_loaded_from_files(runtime):
    pb_utils.load_model(model_name="m", config="{}", files={"file:1/model.py": b"code"})

    assert runtime.calls[0][1] == {"name": "m", "config": "{}", "files": {"1/model.py": b"code"}}


NO_FILES = "failed to load model 'm', files should be a dictionary of file paths and file"
WRONG = [
    (pb_utils.load_model, (None,), TypeError, "must be"),
    (pb_utils.load_model, ("m", 5), TypeError, "must be"),
    (pb_utils.load_model, ("m", "", {"file:1/a": "text"}), TypeError, "must be"),
    (pb_utils.load_model, ("m", "", {5: b""}), TypeError, "must be"),
    (pb_utils.load_model, ("m", "", [1]), TritonModelException, NO_FILES),
    (
        pb_utils.load_model,
        ("m", "", {"1/a": b""}),
        TritonModelException,
        "'file:', got '1/a'",
    ),
    (
        pb_utils.unload_model,
        ("m", "yes"),
        TypeError,
        "unload_dependents must be a bool",
    ),
    (pb_utils.is_model_ready, ("m", 1), TypeError, "model_version must be a str"),
]


@pytest.mark.parametrize("function, arguments, kind, text", WRONG)
def test_wrong_argument_is_refused(runtime, function, arguments, kind, text):
    with pytest.raises(kind, match=text):
        function(*arguments)


def test_model_is_unloaded(runtime):
    pb_utils.unload_model("m")
    pb_utils.unload_model("m", unload_dependents=True)

    assert runtime.calls == [
        ("unload_model", {"name": "m", "unload_dependents": False}),
        ("unload_model", {"name": "m", "unload_dependents": True}),
    ]


@pytest.mark.parametrize("answer", [True, False])
def test_readiness_is_the_servers_word(runtime, answer):
    runtime.answers["is_model_ready"] = answer

    assert pb_utils.is_model_ready("m", "3") is answer
    assert runtime.calls == [("is_model_ready", {"name": "m", "version": "3"})]


@pytest.mark.parametrize(
    "function, prefix",
    [
        (pb_utils.load_model, "Failed to load model"),
        (pb_utils.unload_model, "Failed to unload model"),
        (pb_utils.is_model_ready, "Failed to check model readiness"),
    ],
)
def test_refusal_of_the_server_has_tritons_words(runtime, function, prefix):
    runtime.refusal = "no such thing"
    with pytest.raises(TritonModelException, match=re.escape(f"{prefix}{MESSAGE}no such thing")):
        function("m")


@pytest.mark.parametrize(
    "function", [pb_utils.load_model, pb_utils.unload_model, pb_utils.is_model_ready]
)
def test_models_are_controlled_by_a_server(function):
    with pytest.raises(TritonModelException, match="no server to control models"):
        function("m")


def test_model_directory_is_that_of_its_version(runtime):
    assert pb_utils.get_model_dir() == "/models/model/1"


def test_model_directory_is_a_servers():
    with pytest.raises(TritonModelException, match="no server"):
        pb_utils.get_model_dir()
