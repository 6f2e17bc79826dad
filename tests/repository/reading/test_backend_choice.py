# SPDX-License-Identifier: Apache-2.0
"""Which backend a model belongs to, and which file runs it; the answers are the real Triton's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton.base.errors import ErrorCode, InvalidArgumentError
from pytriton.serving.engine.config import config_from_text, normalise_config
from pytriton.serving.engine.config_rules import validate_model
from pytriton.serving.repository.reading.backend_choice import (
    BackendFolders,
    CodeKind,
    choose_code,
    fill_backend,
    user_backend_folder,
    with_code,
)

FILE, DIRECTORY = False, True
MODEL, VERSION = Path("/models/m"), Path("/models/m/1")
FOLDERS = BackendFolders(triton=Path("/b"), user=Path("/home/x/backends"), own=Path("/ours"))


def config_of(text: str = "", name: str = "m"):
    return config_from_text(f'name: "{name}" {text}', "config.pbtxt")


def filled(text: str = "", name: str = "m", **entries: bool):
    config = config_of(text, name)
    fill_backend(config, {each.replace("_", "."): value for each, value in entries.items()})
    return config


def identity(config):
    return config.backend, config.platform, config.default_model_filename


ONNX = ("onnxruntime", "onnxruntime_onnx", "model.onnx")
TORCH = ("pytorch", "pytorch_libtorch", "model.pt")
AOTI = ("pytorch", "torch_aoti", "model.pt2")
SAVED = ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")
GRAPH = ("tensorflow", "tensorflow_graphdef", "model.graphdef")
PLAN = ("tensorrt", "tensorrt_plan", "model.plan")
OPENVINO = ("openvino", "", "model.xml")
PYTHON = ("python", "", "model.py")


@pytest.mark.parametrize(
    "entries, expected",
    [
        ({"model_onnx": FILE}, ONNX),
        ({"model_onnx": DIRECTORY}, ONNX),
        ({"model_onnx": FILE, "model_py": FILE}, ONNX),
        ({"model_pt": FILE}, TORCH),
        ({"model_pt2": FILE}, AOTI),
        ({"model_pt": FILE, "model_pt2": FILE}, TORCH),
        ({"model_savedmodel": DIRECTORY}, SAVED),
        ({"model_graphdef": FILE}, GRAPH),
        ({"model_plan": FILE, "model_onnx": FILE}, PLAN),
        ({"model_xml": FILE, "model_bin": FILE}, OPENVINO),
        ({"model_py": FILE}, PYTHON),
        ({"model_py": DIRECTORY}, PYTHON),
    ],
)
def test_backend_is_known_by_the_files(entries, expected):
    assert identity(filled(**entries)) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ('backend: "onnxruntime"', ONNX),
        ('platform: "onnxruntime_onnx"', ONNX),
        ('default_model_filename: "model.onnx"', ONNX),
        ('backend: "onnxruntime" default_model_filename: "n"', (*ONNX[:2], "n")),
        ('backend: "onnxruntime" runtime: "model.py"', ONNX),
        ('backend: "pytorch"', TORCH),
        ('platform: "pytorch_libtorch"', TORCH),
        ('default_model_filename: "model.pt"', TORCH),
        ('platform: "torch_aoti"', AOTI),
        ('backend: "pytorch" platform: "torch_aoti"', AOTI),
        ('default_model_filename: "model.pt2"', (*TORCH[:2], "model.pt2")),
        ('backend: "pytorch" runtime: "model.py"', (*TORCH[:2], "")),
        ('platform: "pytorch_libtorch" runtime: "model.py"', (*TORCH[:2], "")),
        ('platform: "tensorflow_savedmodel"', SAVED),
        ('default_model_filename: "model.savedmodel"', SAVED),
        ('platform: "tensorrt_plan"', PLAN),
        ('backend: "tensorrt"', PLAN),
        ('backend: "openvino"', OPENVINO),
        ('default_model_filename: "model.xml"', OPENVINO),
        ('default_model_filename: "model.py"', PYTHON),
        ('backend: "python"', PYTHON),
        ('backend: "mine"', ("mine", "", "")),
        ('backend: "mine" platform: "foo"', ("mine", "foo", "")),
    ],
)
def test_one_setting_tells_the_others(text, expected):
    assert identity(filled(text)) == expected


def test_tensorflow_has_the_platform_of_its_file():
    assert identity(filled('backend: "tensorflow"', model_graphdef=FILE)) == GRAPH
    assert identity(filled('backend: "tensorflow"', model_savedmodel=DIRECTORY)) == SAVED


@pytest.mark.parametrize("name, backend", [("n.mine", "mine"), ("a.b.c", "b.c")])
def test_backend_is_in_the_name_after_the_first_dot(name, backend):
    assert identity(filled(name=name, x=FILE)) == (backend, "", f"model.{backend}")


@pytest.mark.parametrize(
    "entries", [{}, {"x": FILE}, {"model_pt": DIRECTORY}, {"model_savedmodel": FILE}]
)
def test_model_that_nothing_tells_the_backend_of_is_refused(entries):
    with pytest.raises(InvalidArgumentError) as caught:
        filled(**entries)

    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            'platform: "onnxruntime_foo" backend: "onnxruntime"',
            "unexpected 'platform' and 'backend' pair, got:onnxruntime_foo, onnxruntime",
        ),
        (
            'platform: "torch_aoti" backend: "onnxruntime"',
            "unexpected 'platform' and 'backend' pair, got:torch_aoti, onnxruntime",
        ),
        ('backend: "tensorflow"', "unexpected 'platform' and 'backend' pair, got:, tensorflow"),
        ('platform: "libtorch"', "unexpected platform type 'libtorch' for m"),
        ('platform: "unknown"', "unexpected platform type 'unknown' for m"),
        ('default_model_filename: "net.onnx"', "unexpected platform type '' for m"),
    ],
)
def test_settings_that_do_not_fit_are_refused(text, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        validate_model(normalise_config(filled(text)))

    assert caught.value.message == expected


@pytest.mark.parametrize(
    "backend, counts",
    [("onnxruntime", [2, 1, 1]), ("tensorflow", [2, 1, 1]), ("mine", [1, 1, 1])],
)
def test_some_backends_have_two_instances_on_the_cpu(backend, counts):
    groups = "[{kind: KIND_CPU}, {kind: KIND_CPU count: 1}, {kind: KIND_MODEL}]"
    config = normalise_config(config_of(f'backend: "{backend}" instance_group {groups}'))

    assert [group.count for group in config.instance_group] == counts


def chosen(text: str, *files: str):
    return choose_code(config_of(text), MODEL, VERSION, FOLDERS, set(map(Path, files)).__contains__)


def test_python_backend_runs_the_file_of_the_model():
    code = chosen('backend: "python" default_model_filename: "model.py"')
    other = chosen(
        'backend: "python" runtime: "libtriton_python.so" default_model_filename: "n.py"'
    )

    assert (code.kind, code.path) == (CodeKind.MODEL, VERSION / "model.py")
    assert (other.kind, other.path) == (CodeKind.MODEL, VERSION / "n.py")


# Every place of a backend, in the order of the search.
PLACES = [
    "/models/m/1/libtriton_n.so",
    "/models/m/libtriton_n.so",
    "/b/n/libtriton_n.so",
    "/b/n/model.py",
    "/home/x/backends/n/libtriton_n.so",
    "/home/x/backends/n/model.py",
    "/ours/n/model.py",
]


@pytest.mark.parametrize("count", range(1, len(PLACES) + 1))
def test_first_file_in_the_order_of_the_search_runs_a_model(count):
    code = chosen('backend: "n"', *PLACES[-count:])

    expected = PLACES[-count]
    assert str(code.path) == expected
    assert code.backend == "n"
    assert code.kind is (CodeKind.PYTHON if expected.endswith(".py") else CodeKind.LIBRARY)
    assert code.is_ours is expected.startswith("/ours")


def test_runtime_may_ask_for_the_python_file_beside_a_library():
    text = 'backend: "n" runtime: "model.py"'
    files = [place for place in PLACES if place.endswith(".py")]

    for count in range(1, len(files) + 1):
        code = chosen(text, *PLACES[:3], *files[-count:])

        assert (code.kind, str(code.path)) == (CodeKind.PYTHON, files[-count])


@pytest.mark.parametrize("folder", ["/models/m/1", "/models/m", "/b/n", "/home/x/backends/n"])
def test_runtime_may_name_a_library(folder):
    code = chosen('backend: "n" runtime: "libother.so"', f"{folder}/libother.so", *PLACES)

    assert (code.kind, str(code.path)) == (CodeKind.LIBRARY, f"{folder}/libother.so")


def test_file_in_the_model_directory_is_no_backend():
    with pytest.raises(InvalidArgumentError, match="unable to find backend library"):
        chosen('backend: "n"', "/models/m/1/model.py", "/models/m/model.py")


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            'backend: "n"',
            (
                "unable to find backend library for backend 'n', try specifying runtime on the "
                "model configuration."
            ),
        ),
        (
            'backend: "n" runtime: "model.py"',
            (
                "unable to find Python backend based backend library 'model.py' for model 'm', "
                "searched: '/b/n/model.py' '/home/x/backends/n/model.py'"
            ),
        ),
        (
            'backend: "n" runtime: "l.so"',
            (
                "unable to find backend library 'l.so' for model 'm', searched: '/models/m/1' "
                "'/models/m' '/b/n' '/home/x/backends/n' "
            ),
        ),
        (
            'backend: "n" runtime: "../../l.so"',
            (
                "backend library name '../../l.so' escapes backend directory '/b/n', check model "
                "config runtime field"
            ),
        ),
        (
            'backend: "python" runtime: "model.py"',
            (
                "unable to find Python backend based backend library 'model.py' for model 'm', "
                "searched: '/b/python/model.py' '/home/x/backends/python/model.py'"
            ),
        ),
        (
            'backend: "../n"',
            (
                "invalid backend name '../n' of model 'm', backend name must not be empty or "
                "contain path traversal characters"
            ),
        ),
    ],
)
def test_backend_that_is_not_there_is_refused_in_tritons_words(text, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        chosen(text)

    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == expected


@pytest.mark.parametrize("text", ['backend: "{}"', 'backend: "mine" runtime: "{}"'])
def test_name_that_no_file_can_have_is_a_missing_file(text, tmp_path):
    """As is a file in a folder that this user may not read."""
    with pytest.raises(InvalidArgumentError, match="unable to find backend library"):
        choose_code(config_of(text.format("x" * 300)), tmp_path, tmp_path, FOLDERS)


def test_code_of_a_backend_is_visible_in_the_configuration():
    config = config_of('backend: "n"')
    code = chosen('backend: "n"', "/b/n/model.py")

    assert with_code(config, code, lambda _: False).runtime == "model.py"
    assert not config.runtime


def test_code_of_ours_and_libraries_leave_the_configuration_alone():
    config = config_of('backend: "n"')

    for place in ("/ours/n/model.py", "/b/n/libtriton_n.so"):
        assert with_code(config, chosen('backend: "n"', place), lambda _: True) == config


def test_archive_beside_the_code_is_the_environment_of_models_that_name_none():
    archive = "/b/n/pb_exec_env_model.py.tar.gz"
    code = chosen('backend: "n"', "/b/n/model.py")
    own = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/e" } }'

    completed = with_code(config_of('backend: "n"'), code, {Path(archive)}.__contains__)
    kept = with_code(config_of(f'backend: "n" {own}'), code, {Path(archive)}.__contains__)

    assert completed.parameters["EXECUTION_ENV_PATH"].string_value == archive
    assert kept.parameters["EXECUTION_ENV_PATH"].string_value == "/e"


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({"HOME": "/home/x"}, "/home/x/.local/share/pytriton/backends"),
        ({"HOME": "/home/x", "XDG_DATA_HOME": "/data"}, "/data/pytriton/backends"),
        ({}, None),
    ],
)
def test_users_have_a_folder_of_backends(environment, expected):
    assert user_backend_folder(environment) == (Path(expected) if expected else None)
