# SPDX-License-Identifier: Apache-2.0
"""How a harness imports, completes, initializes and finalizes a model, and asks if it is ready."""

from __future__ import annotations

import json
import sys

import pytest
import triton_python_backend_utils as pb_utils

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.pb_utils.runtime import current_runtime
from pytriton.testing import ModelHarness, RuleError
from tests.testing.doubling import Doubling, config


def test_initialize_gets_what_a_server_gives():
    seen = {}

    class Model(Doubling):
        def initialize(self, args):
            seen.update(args)

    with ModelHarness(Model, config(max_batch_size=4)) as model:
        whole = model.config

    assert sorted(seen) == [
        "model_config",
        "model_instance_device_id",
        "model_instance_kind",
        "model_instance_name",
        "model_name",
        "model_repository",
        "model_version",
    ]
    assert json.loads(seen["model_config"]) == whole
    assert whole["max_batch_size"] == 4
    assert whole["input"][0]["optional"] is False
    assert seen["model_name"] == "double"
    assert seen["model_version"] == "1"


def test_finalize_is_called_and_may_raise():
    class Model(Doubling):
        def finalize(self):
            pb_utils.Logger.log_info("the end")
            raise RuntimeError("in finalize")

    harness = ModelHarness(Model, config())
    with pytest.raises(RuntimeError, match="in finalize"), harness:
        pass

    assert [line.message for line in harness.logs] == ["the end"]
    assert current_runtime() is None


@pytest.mark.parametrize("given", [".", "2"])
@pytest.mark.parametrize("name", ["model.py", "double.py"])
def test_model_is_found_in_its_folder(tmp_path, given, name):
    for version in ("1", "2", "10"):
        folder = tmp_path / version
        folder.mkdir()
        (folder / name).write_text(f"class TritonPythonModel:\n    VERSION = {version}\n")
    (tmp_path / "config.pbtxt").write_text(
        f'name: "scale" max_batch_size: 3 default_model_filename: "{name}"'
    )

    with ModelHarness(tmp_path / given) as model:
        assert int(model.model.VERSION) == (2 if given == "2" else 10)
        assert model.config["max_batch_size"] == 3


def test_folder_without_code_is_refused_with_what_was_expected(tmp_path):
    with (
        pytest.raises(RuleError, match=rf"its code in {tmp_path}/1/model.py, .* got the folder"),
        ModelHarness(tmp_path),
    ):
        pass


def test_exception_of_initialize_leaves_nothing_behind():
    class Model(Doubling):
        def initialize(self, args):
            raise OSError("no weights")

    with pytest.raises(OSError, match="no weights"), ModelHarness(Model, config()):
        pytest.fail("it was entered")

    assert current_runtime() is None


def test_model_completes_its_configuration():
    class Model(Doubling):
        @staticmethod
        def auto_complete_config(auto_complete_model_config):
            for kind in ("input", "output"):
                for tensor in config()[kind]:
                    getattr(auto_complete_model_config, f"add_{kind}")(tensor)
            auto_complete_model_config.set_max_batch_size(8)
            return auto_complete_model_config

    with ModelHarness(Model, {"name": "m"}) as model:
        assert model.config["max_batch_size"] == 8
        assert model.execute({"IN": [[1]]})["OUT"].tolist() == [[2]]


def test_completion_must_give_a_configuration():
    class Model(Doubling):
        @staticmethod
        def auto_complete_config(auto_complete_model_config):
            return {}

    with (
        pytest.raises(RuleError, match=r"must return a valid pb\.ModelConfig"),
        ModelHarness(Model, config()),
    ):
        pytest.fail("it was entered")


@pytest.mark.parametrize("answer", [True, False])
def test_readiness_is_the_models_word(answer):
    class Model(Doubling):
        async def is_ready(self):
            return answer

    with ModelHarness(Model, config()) as model:
        assert model.is_ready() is answer


def test_readiness_is_a_bool():
    class Model(Doubling):
        def is_ready(self):
            return 1

    with (
        ModelHarness(Model, config()) as model,
        pytest.raises(RuleError, match="must return a boolean value"),
    ):
        model.is_ready()


def test_model_without_a_readiness_check_is_ready():
    with ModelHarness(Doubling, config()) as model:
        assert model.is_ready()


MODEL_FILE = """
import helper
from . import relative
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        array = requests[0].inputs()[0].as_numpy() * helper.FACTOR + relative.OFFSET
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]
"""
CONFIG_FILE = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def write_model(directory, factor):
    version = directory / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL_FILE)
    (version / "helper.py").write_text(f"FACTOR = {factor}")
    (version / "relative.py").write_text("OFFSET = 1")
    (directory / "config.pbtxt").write_text(CONFIG_FILE)
    return version / "model.py"


def test_file_is_imported_as_a_server_does_and_forgotten(tmp_path):
    places, modules = list(sys.path), set(sys.modules)
    for factor in (10, 20):
        path = write_model(tmp_path / f"model_{factor}", factor)
        with ModelHarness(path) as model:
            assert model.config["name"] == f"model_{factor}"
            assert pb_utils.get_model_dir() == str(path.parent)
            assert model.execute({"IN": [1]})["OUT"].tolist() == [factor + 1]

    assert sys.path == places
    assert {"1", "1.model", "1.relative", "helper"} & (set(sys.modules) - modules) == set()


def test_configuration_may_be_another_file(tmp_path):
    path = write_model(tmp_path / "model", 10)
    other = tmp_path / "other.pbtxt"
    other.write_text('name: "other" max_batch_size: 2' + CONFIG_FILE)
    with ModelHarness(str(path), str(other)) as model:
        assert model.config["name"] == "other"
        assert model.execute({"IN": [[1]]})["OUT"].tolist() == [[11]]


def test_file_outside_of_a_version_is_a_module_of_its_own(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("class TritonPythonModel:\n    pass\n")
    with ModelHarness(path) as model:
        assert type(model.model).__module__ == "model"


@pytest.mark.parametrize(
    "name, text, error",
    [
        ("missing.py", None, RuleError),
        ("model.txt", "", RuleError),
        ("model.py", "x = 1", AttributeError),
    ],
)
def test_file_that_is_no_model_is_refused(tmp_path, name, text, error):
    if text is not None:
        (tmp_path / name).write_text(text)
    places = list(sys.path)
    with pytest.raises(error), ModelHarness(tmp_path / name):
        pytest.fail("it was entered")

    assert sys.path == places


def test_configuration_that_is_not_valid_is_refused():
    with (
        pytest.raises(InvalidArgumentError, match="TYPE_NONSENSE"),
        ModelHarness(Doubling, {"input": [{"name": "IN", "data_type": "TYPE_NONSENSE"}]}),
    ):
        pytest.fail("it was entered")
