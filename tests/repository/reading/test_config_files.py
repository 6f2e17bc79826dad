# SPDX-License-Identifier: Apache-2.0
"""Reading configurations from files: names, backends, labels, and what broken models say."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.repository.reading.config_files import (
    read_config,
    read_initial_states,
    read_labels,
)
from pytriton.serving.repository.reading.layout import ModelPlace
from tests.repository.scene import CODE, CONFIG, write_config, write_model

INPUT = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'


@pytest.fixture
def place(repository):
    return ModelPlace(repository, write_model(repository))


def refusal(place, name="m", **settings) -> ServerError:
    with pytest.raises(ServerError) as caught:
        read_config(place, name, **settings)
    return caught.value


def test_config_gets_its_name_and_its_defaults(place):
    config = read_config(place, "m")

    assert (config.name, config.backend) == ("m", "python")
    assert config.default_model_filename == "model.py"
    assert [(group.name, group.count) for group in config.instance_group] == [("m", 1)]
    assert config.version_policy.latest.num_versions == 1


def test_model_without_a_config_is_one_of_the_python_backend(repository):
    place = ModelPlace(repository, write_model(repository, config=None))

    config = read_config(place, "m")

    assert (config.name, config.backend, config.platform) == ("m", "python", "")


def test_named_config_is_used_where_the_model_has_it(place):
    (place.directory / "configs").mkdir()
    (place.directory / "configs" / "big.pbtxt").write_text(CONFIG + "max_batch_size: 64")

    assert read_config(place, "m", config_name="big").max_batch_size == 64
    assert read_config(place, "m", config_name="small").max_batch_size == 0


def test_config_has_to_be_there_and_complete_where_models_may_not_complete_it(repository):
    missing = ModelPlace(repository, write_model(repository, config=None))
    assert refusal(missing, may_complete=False).message == (
        f"failed to open text file for read {repository}/m/config.pbtxt: No such file or directory"
    )
    (missing.directory / "config.pbtxt").write_text(CONFIG + 'input [ { name: "x" } ]')

    assert refusal(missing, may_complete=False).message == (
        "model input 'x' must specify 'data_type' for m"
    )
    assert read_config(missing, "m").input[0].name == "x"


def test_config_that_cannot_be_read_is_named(place):
    (place.directory / "config.pbtxt").unlink()
    (place.directory / "config.pbtxt").mkdir()

    assert refusal(place).message == (
        f"failed to open text file for read {place.directory}/config.pbtxt: Is a directory"
    )


def test_config_that_is_no_text_is_named(place):
    (place.directory / "config.pbtxt").write_bytes(b"name: \xff")

    assert refusal(place).message == (
        f"failed to read text proto from {place.directory}/config.pbtxt: "
        "expected UTF-8, got byte 0xff at offset 6"
    )


# Labels


def test_labels_are_the_lines_of_the_file_that_an_output_names(place):
    (place.directory / "labels.txt").write_text("cat\ndog\n\nbird\n")
    output = 'output [ { name: "y" label_filename: "labels.txt" }, { name: "z" } ]'
    write_config(place.directory, CONFIG + output)

    assert read_labels(place, read_config(place, "m")) == {"y": ("cat", "dog", "", "bird")}


@pytest.mark.parametrize("name", ["../../secret.txt", "/etc/passwd", "link.txt"])
def test_labels_never_come_from_elsewhere(scene, repository, place, name):
    (repository.parent / "secret.txt").write_text("secret")
    (place.directory / "link.txt").symlink_to(repository.parent / "secret.txt")
    it = scene()

    output = {"name": "y", "label_filename": name}

    error = it.refusal(config=json.dumps({"backend": "python", "output": [output]}))

    assert "is outside model directory" in error.message
    assert "Unsupported: " in error.message
    assert it.loader.loaded == []


# Broken models: each ends with a reason in the index, and serves once it is corrected.

PLACE = "failed to read text proto from {path}:"

BROKEN_CONFIGS = {  # the text, and how the reason begins; what protobuf says ends it
    "unknown field": (CONFIG + "  foo: 1", PLACE + "2:3: "),
    "no text proto": ("backend: {", PLACE + "1:10: "),
    "unknown data type": (CONFIG + "input [ { data_type: TYPE_FOO } ]", PLACE + "2:22: "),
    "value of another type": (CONFIG + 'max_batch_size: "many"', PLACE + "2:17: "),
    "negative batch size": (
        CONFIG + "max_batch_size: -1",
        "'max_batch_size' must be non-negative value for m",
    ),
    "name of another model": (
        CONFIG + 'name: "n"',
        "unexpected directory name 'm' for model 'n', directory name must equal model name",
    ),
    "unknown platform": ('platform: "strange"', "unexpected platform type 'strange' for m"),
}


@pytest.mark.parametrize("case", BROKEN_CONFIGS)
def test_broken_config_ends_with_a_reason_and_can_be_corrected(scene, repository, case):
    text, beginning = BROKEN_CONFIGS[case]
    directory = write_model(repository, config=text)
    it = scene()

    error = it.refusal()

    refusal, _, reason = error.message.partition(": ")
    assert error.code is ErrorCode.INTERNAL
    assert refusal == "failed to load 'm', failed to poll from model repository"
    assert reason.startswith(beginning.format(path=directory / "config.pbtxt"))
    assert it.rows() == [IndexEntry("m", "", "UNAVAILABLE", f"Invalid argument: {reason}")]
    write_config(directory, CONFIG)
    it.load()
    assert it.rows() == [IndexEntry("m", "1", "READY")]


TRY_RUNTIME = "try specifying runtime on the model configuration."
UNREADABLE = "Internal: failed to open text file for read {directory}/"
NOT_THERE = ": No such file or directory"
SAMPLE = """
model_warmup [ { name: "s" batch_size: 1 inputs { key: "x" value {
  data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "none"
} } } ]
"""


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


BROKEN_VERSIONS = {
    "another backend": (
        'backend: "tensorrt" platform: "tensorrt_plan"',
        "Invalid argument: unable to find backend library for backend 'tensorrt', " + TRY_RUNTIME,
    ),
    "code of somebody else": (
        CONFIG + 'default_model_filename: "../n.py"',
        (
            "Invalid argument: expected 'default_model_filename' of model 'm' to stay within its "
            "version directory, got '../n.py'"
        ),
    ),
    "a file for a GPU that is somebody else's": (
        CONFIG + 'cc_model_filenames { key: "8.0" value: "/n.py" }',
        (
            "Invalid argument: expected 'cc_model_filenames[8.0]' of model 'm' to stay within its "
            "version directory, got '/n.py'"
        ),
    ),
    "another backend without its platform": (
        'backend: "tensorrt"',
        "Invalid argument: unable to find backend library for backend 'tensorrt', " + TRY_RUNTIME,
    ),
    "no GPU": (
        CONFIG + "instance_group [ { kind: KIND_GPU } ]",
        (
            "Invalid argument: instance group m_0 of model m has kind KIND_GPU but no GPUs are "
            "available"
        ),
    ),
    "GPUs of a CPU group": (
        CONFIG + 'instance_group [ { name: "g" kind: KIND_CPU gpus: [ 0 ] } ]',
        (
            "Invalid argument: instance group g of model m has kind KIND_CPU but specifies "
            "one or more GPUs"
        ),
    ),
    "no labels": (
        CONFIG + 'output [ { name: "y" label_filename: "none.txt" } ]',
        UNREADABLE + "none.txt" + NOT_THERE,
    ),
    "no warm-up data": (CONFIG + SAMPLE, UNREADABLE + "warmup/none" + NOT_THERE),
    "unknown tensor placement": (
        CONFIG + parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"),
        "Unsupported: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'",
    ),
    "batching library": (
        CONFIG + parameter("TRITON_BATCH_STRATEGY_PATH", "/x.so"),
        (
            "Unsupported: model 'm' asks for a batching library (TRITON_BATCH_STRATEGY_PATH), this "
            "server does not load compiled batching strategies; remove the parameter"
        ),
    ),
    "unknown visibility": (
        CONFIG + parameter("VISIBLE_GPUS", "some"),
        (
            "Invalid argument: expected 'all' or 'own' as parameter VISIBLE_GPUS of model 'm', "
            "got 'some'"
        ),
    ),
}


@pytest.mark.parametrize("case", BROKEN_VERSIONS)
def test_version_that_cannot_run_ends_with_a_reason_and_can_be_corrected(scene, repository, case):
    text, expected = BROKEN_VERSIONS[case]
    directory = write_model(repository, config=text)
    expected = expected.format(directory=directory)
    it = scene()

    error = it.refusal()

    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == (
        f"load failed for model 'm': version 1 is at UNAVAILABLE state: {expected};\n"
    )
    assert it.rows() == [IndexEntry("m", "1", "UNAVAILABLE", expected)]
    write_config(directory, CONFIG)
    it.load()
    assert it.rows() == [IndexEntry("m", "1", "READY")]


@pytest.mark.parametrize("place", [".", "1"])
def test_version_with_a_batching_library_ends_with_a_reason(scene, repository, place):
    directory = write_model(repository, config=CONFIG)
    library = directory / place / "batchstrategy.so"
    library.touch()
    it = scene()

    error = it.refusal()

    assert error.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Unsupported: model 'm' has "
        f"a batching library '{library}', this server does not load compiled batching strategies; "
        "remove the file;\n"
    )


@pytest.mark.parametrize("files", [(), ("1",)])
def test_directory_without_anything_to_run_says_so(scene, repository, files):
    directory = write_model(repository, config=None, versions=())
    for name in files:
        (directory / name).mkdir()
    it = scene()

    error = it.refusal()

    expected = (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )
    assert error.message.endswith(expected)
    assert it.rows() == [IndexEntry("m", "", "UNAVAILABLE", f"Invalid argument: {expected}")]
    (directory / "1").mkdir(exist_ok=True)
    (directory / "1" / "model.py").write_text(CODE)
    it.load()
    assert it.rows() == [IndexEntry("m", "1", "READY")]


STATEFUL = """sequence_batching {{ state {{
    input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state {{ name: "zero" data_type: TYPE_INT32 dims: [ 1 ] data_file: "{}" }}
}} }}"""


def test_initial_states_are_read_from_their_folder(place):
    folder = place.directory / "initial_state"
    folder.mkdir()
    (folder / "first").write_bytes(b"\1\0\0\0")
    write_config(place.directory, CONFIG + STATEFUL.format("first"))

    assert read_initial_states(place, read_config(place, "m")) == {"i": b"\1\0\0\0"}


@pytest.mark.parametrize(
    "name,problem",
    [
        ("missing", "failed to open text file for read {}/missing: No such file or directory"),
        ("../config.pbtxt", "file '../config.pbtxt' is outside model directory {}"),
    ],
)
def test_initial_states_that_cannot_be_read_are_refused(place, name, problem):
    write_config(place.directory, CONFIG + STATEFUL.format(name))

    with pytest.raises(ServerError) as caught:
        read_initial_states(place, read_config(place, "m"))

    assert caught.value.message == problem.format(place.directory / "initial_state")
