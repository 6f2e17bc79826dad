# SPDX-License-Identifier: Apache-2.0
"""How a model's file is imported and initialized, and what is said when that fails."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from pytriton.base.errors import ErrorCode
from pytriton.runtime.python_backend import loader

X = np.array([[1.0]], np.float32)


def test_file_is_imported_as_a_module_of_its_version(start_worker, tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "helper.py").write_text("VALUE = 1")
    (tmp_path / "m" / "beside.py").write_text("VALUE = 2")
    rig = start_worker(
        """
from . import helper as relative
import helper
import beside

class TritonPythonModel:
    def execute(self, requests): ...
    def initialize(self, args):
        assert (__name__, __package__) == ("1.model", "1"), (__name__, __package__)
        assert (relative.VALUE, helper.VALUE, beside.VALUE) == (1, 1, 2)
        version, folder, utils = sys.path[-3:]
        assert version.endswith("/m/1") and folder.endswith("/m"), sys.path
        assert pb_utils.__file__.startswith(utils)
        assert pb_utils.get_model_dir() == version
        assert os.getcwd() not in sys.path[:-3] and "" not in sys.path
"""
    )
    assert rig.initialized().error == ""


def test_file_that_changes_within_a_second_is_loaded_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / "model.py"
    found = []
    for number in (1, 2):
        file.write_text(f"class TritonPythonModel:\n    number = {number}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        found.append(loader.load_class(str(file), "1").number)
        for name in ("1", "1.model"):
            monkeypatch.delitem(sys.modules, name)

    assert found == [1, 2]
    assert [path.name for path in file.parent.iterdir()] == ["model.py"]


ARGUMENTS = [
    "model_config", "model_instance_device_id", "model_instance_kind", "model_instance_name",
    "model_name", "model_repository", "model_version",
]  # fmt: skip


def initializing(*lines, execute="def execute(self, requests): ..."):
    body = "".join(f"        {line}\n" for line in lines)
    return f"class TritonPythonModel:\n    {execute}\n    def initialize(self, args):\n{body}"


INITIALIZED = {
    "imports its file once more": initializing(
        "import model",
        "assert model.TritonPythonModel is not TritonPythonModel",
        "assert model.pb_utils is pb_utils",
    ),
    "gets its arguments": initializing(
        f"assert sorted(args) == {ARGUMENTS}",
        "assert all(isinstance(value, str) for value in args.values())",
        "assert '\"max_batch_size\": 8' in args['model_config']",
    ),
    "sets execute": initializing("self.execute = lambda requests: None", execute=""),
}


@pytest.mark.parametrize("source", INITIALIZED.values(), ids=INITIALIZED)
def test_file_is_loaded_that(start_worker, source):
    assert start_worker(source).initialized().error == ""


def test_version_may_be_a_package(start_worker, tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "__init__.py").write_text("VALUE = 7")
    rig = start_worker("from . import VALUE\n" + initializing("assert VALUE == 7"))

    assert rig.initialized().error == ""


def test_file_may_have_another_name(start_worker):
    source = initializing("assert __name__ == '1.other-name.v2', __name__")

    assert start_worker(source, filename="other-name.v2.py").initialized().error == ""


def test_code_of_a_backend_is_a_module_of_its_own(start_worker):
    source = initializing(
        "assert (__name__, __package__) == ('backend', ''), (__name__, __package__)",
        "assert pb_utils.get_model_dir() == '/models/m/1', pb_utils.get_model_dir()",
    )
    of_backend = {"filename": "backend.py", "package": "", "model_directory": "/models/m/1"}

    assert start_worker(source, **of_backend).initialized().error == ""


SETTINGS_READER = """
class TritonPythonModel:
    def execute(self, requests): ...
    @staticmethod
    def auto_complete_config(config):
        assert pb_utils.get_backend_config() == {"a": "b"}
        return config
    def initialize(self, args):
        pb_utils.get_backend_config().clear()
        assert pb_utils.get_backend_config() == {"a": "b"}
"""


@pytest.mark.parametrize("completes_config", [False, True])
def test_model_reads_the_settings_of_its_backend(start_worker, completes_config):
    rig = start_worker(
        SETTINGS_READER, backend_config={"a": "b"}, completes_config=completes_config
    )

    assert rig.initialized().error == ""


FORESEEN = """
from pytriton.base.errors import NotFoundError
class TritonPythonModel:
    def execute(self, requests): ...
    @staticmethod
    def auto_complete_config(config):
        raise pb_utils.TritonModelException("no such type", code=pb_utils.TritonError.UNSUPPORTED)
    def initialize(self, args):
        raise NotFoundError("there is no file")
"""


@pytest.mark.parametrize(
    "completes_config, code, text",
    [
        (True, ErrorCode.UNSUPPORTED, "no such type"),
        (False, ErrorCode.NOT_FOUND, "there is no file"),
    ],
)
def test_error_with_a_code_is_reported_as_it_is(start_worker, completes_config, code, text):
    report = start_worker(FORESEEN, completes_config=completes_config).initialized()

    assert (report.error, report.error_code) == (text, code)


def test_error_with_a_code_needs_no_text(start_worker, zygote):
    rig = start_worker("raise pb_utils.TritonModelException(code=pb_utils.TritonError.UNAVAILABLE)")
    report = rig.initialized()

    assert (report.error, report.error_code) == ("", ErrorCode.UNAVAILABLE)
    assert report.is_failure
    rig.is_over = True
    assert zygote.wait(rig.pid) == 0


@pytest.mark.parametrize("arguments", ["'no'", "'no', code=99"], ids=["none", "unknown"])
def test_exception_without_a_code_is_reported_with_its_text(start_worker, arguments):
    report = start_worker(f"raise pb_utils.TritonModelException({arguments})").initialized()

    assert report.error.startswith("TritonModelException: no")
    assert report.error_code < 0


def test_file_without_execute_is_refused(start_worker):
    rig = start_worker("class TritonPythonModel: pass")
    expected = f"Python model {rig.path} does not implement `execute` method."
    assert rig.initialized().error == expected


def test_missing_file_is_named(start_worker):
    rig = start_worker()
    assert rig.initialized().error == f"Python model file not found in '{rig.path}'"


def test_other_kinds_of_files_are_refused(start_worker):
    rig = start_worker("", filename="model.txt")
    error = rig.initialized().error
    assert error == "Model name must end with '.py'. Model name is \"model.txt\"."


@pytest.mark.parametrize(
    "source, text, function",
    [
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'", None),
        (
            "import no_such_module",
            "ModuleNotFoundError: No module named 'no_such_module'",
            "<module>",
        ),
        (
            "class TritonPythonModel:\n    def initialize(self, args): unknown",
            "NameError: name 'unknown' is not defined",
            "initialize",
        ),
        (
            "class TritonPythonModel:\n    def __init__(self): raise ValueError('no')",
            "ValueError: no",
            "__init__",
        ),
        (
            "class TritonPythonModel:\n    def initialize(self, args): sys.exit(3)",
            "SystemExit: 3",
            "initialize",
        ),
    ],
)
def test_failure_is_reported_with_its_place(start_worker, zygote, source, text, function):
    rig = start_worker(source)
    error = rig.initialized().error
    place = f"\n\nAt:\n  {rig.path}(" if function else ""
    assert error.startswith(text + place)
    if function:
        assert error.endswith(f"): {function}\n")
    else:
        assert error == text
    assert text in rig.log()
    rig.is_over = True
    assert zygote.wait(rig.pid) == 0


def test_process_that_ends_while_it_initializes_is_reported(start_worker, zygote):
    rig = start_worker("os._exit(9)")
    rig.is_over = True
    assert zygote.wait(rig.pid) == 9 << 8
    with pytest.raises(EOFError):
        rig.hear()


# auto_complete_config


def test_configuration_is_completed(start_worker, zygote):
    rig = start_worker(
        """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
        return config
    def initialize(self, args):
        raise AssertionError("not to be called")
""",
        completes_config=True,
    )
    report = rig.initialized()
    assert report.error == ""
    assert json.loads(report.config)["output"][0]["name"] == "y"
    rig.is_over = True
    assert zygote.wait(rig.pid) == 0


def test_model_need_not_complete_its_configuration(start_worker):
    report = start_worker("class TritonPythonModel: pass", completes_config=True).initialized()
    assert (report.error, report.config) == ("", "")


@pytest.mark.parametrize(
    "body, text",
    [
        (
            "return 5",
            "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
        ),
        ("raise ValueError('no')", "ValueError: no\n\nAt:\n"),
    ],
)
def test_failed_completion_is_reported(start_worker, body, text):
    rig = start_worker(
        f"class TritonPythonModel:\n    def auto_complete_config(config): {body}",
        completes_config=True,
    )
    assert rig.initialized().error.startswith(text)


# finalize


def test_finalize_is_called_last(worker):
    rig = worker(
        """
import atexit
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([])]
    def finalize(self):
        atexit.register(open, os.path.join(pb_utils.get_model_dir(), "ended"), "w")
        pb_utils.Logger.log_info("finalized")
"""
    )
    rig.run({"x": X})
    assert rig.finish() == 0
    assert rig.log() == "finalized"
    assert (rig.path.parent / "ended").exists()


def test_failure_in_finalize_is_logged(worker):
    rig = worker(
        """
class TritonPythonModel:
    def execute(self, requests): ...
    def finalize(self):
        raise ValueError("no")
"""
    )
    assert rig.finish() == 0
    assert "raised in finalize: ValueError: no" in rig.log()
