# SPDX-License-Identifier: Apache-2.0
"""Backends in Python: one `model.py` in a folder of backends runs all models of the backend."""

from __future__ import annotations

import json
import re
import sys

import psutil
import pytest

from tests.e2e.waiting import eventually
from tests.executor.tar_files import file_entry, pack
from tests.repository_e2e.model_files import write_model

# Answers the number in the model's file. A negative input ends the process.
BACKEND = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils
from parts.reading import read_number

class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, config):
        config.set_max_batch_size(int(pb_utils.get_backend_config()["default-max-batch-size"]))
        number = read_number(pb_utils.get_model_dir())
        if number > 100:
            raise pb_utils.TritonModelException(
                f"expected at most 100, got {number}", code=pb_utils.TritonError.UNSUPPORTED)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args):
        self.number = read_number(pb_utils.get_model_dir())
        facts = {
            "module": __name__,
            "repository": args["model_repository"],
            "version": args["model_version"],
            "directory": pb_utils.get_model_dir(),
            "factor": pb_utils.get_backend_config().get("factor"),
            "marked": os.environ.get("MARK"),
        }
        print("FACTS", args["model_name"], json.dumps(facts), flush=True)

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0, 0] < 0:
                os._exit(7)
            y = pb_utils.Tensor("Y", x * 0 + np.float32(self.number))
            answers.append(pb_utils.InferenceResponse([y]))
        return answers
"""
READING = """
import pathlib
def read_number(directory):
    return int(pathlib.Path(directory, "number.txt").read_text())
"""
FILES = {"model.py": BACKEND, "parts/reading.py": READING}


def model(number: int, settings: str = 'backend: "numbers"') -> dict[str, str]:
    return {"1/number.txt": str(number), "config.pbtxt": settings}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of backends: the server's and the user's."""
    place = tmp_path_factory.mktemp("backends")
    write_model(place / "server" / "numbers", FILES)
    write_model(place / "server" / "packed", FILES)
    python = f'#!/bin/sh\nMARK=yes exec "{sys.executable}" "$@"\n'.encode()
    entries = [file_entry("bin/activate"), file_entry("bin/python", python, mode=0o755)]
    pack(place / "server" / "packed" / "pb_exec_env_model.py.tar.gz", entries)
    write_model(place / "data" / "pytriton" / "backends" / "homely", FILES)
    return place


@pytest.fixture(scope="module")
def server(start_module_server, folders):
    several = {**model(1), "2/number.txt": "2"}
    several["config.pbtxt"] += " version_policy { all {} }"
    models = {
        "one": model(1),
        "two": several,
        "packed": model(3, 'backend: "packed"'),
        "homely": model(4, 'backend: "homely"'),
        "refused": model(101),
    }
    loaded = ["one", "two", "packed", "homely"]
    return start_module_server(
        models,
        flags=[
            f"--backend-directory={folders / 'server'}",
            "--backend-config=default-max-batch-size=5",
            "--backend-config=numbers,factor=3",
            "--backend-config=homely,default-max-batch-size=6",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in loaded),
        ],
        environment={"XDG_DATA_HOME": str(folders / "data")},
    ).await_ready()


def facts(server, name):
    """What the first instance of a model found."""
    return json.loads(re.search(rf"FACTS {name} (\{{.*\}})", server.stdout)[1])


def config_of(server, name):
    return server.get(f"/v2/models/{name}/config").json


def test_models_of_a_backend_share_its_code(server):
    assert server.infer("one") == [1.0]
    assert server.infer("two", version="1") == [1.0]
    assert server.infer("two", version="2") == [2.0]
    assert server.infer("homely") == [4.0]


def test_code_sees_what_it_sees_in_triton(server):
    directory = server.repository / "one"

    assert facts(server, "one") == {
        "module": "model",
        "repository": str(directory),
        "version": "1",
        "directory": str(directory / "1"),
        "factor": "3",
        "marked": None,
    }


def test_configuration_shows_the_code_and_what_it_completed(server):
    config = config_of(server, "one")

    assert (config["backend"], config["runtime"]) == ("numbers", "model.py")
    assert config["default_model_filename"] == ""
    assert config["max_batch_size"] == 5
    assert config_of(server, "homely")["max_batch_size"] == 6
    assert [tensor["name"] for tensor in config["input"]] == ["X"]


def test_archive_beside_the_code_is_its_environment(server, folders):
    archive = folders / "server" / "packed" / "pb_exec_env_model.py.tar.gz"

    assert server.infer("packed") == [3.0]
    assert facts(server, "packed")["marked"] == "yes"
    assert config_of(server, "packed")["parameters"] == {
        "EXECUTION_ENV_PATH": {"string_value": str(archive)}
    }


def test_backends_are_in_the_table_with_their_files_and_settings(server, folders):
    rows = re.findall(r"^\| (\w+) +\| (/\S+) +\| (\{.*\}) +\|$", server.stdout, re.MULTILINE)
    paths = {name: path for name, path, _ in rows}
    settings = {name: json.loads(config)["cmdline"] for name, _, config in rows}

    assert list(paths) == ["homely", "numbers", "packed", "python"]
    assert paths["numbers"] == str(folders / "server" / "numbers" / "model.py")
    assert paths["homely"] == str(folders / "data/pytriton/backends/homely/model.py")
    assert settings["numbers"]["factor"] == "3"
    assert "factor" not in settings["python"]
    assert settings["homely"]["default-max-batch-size"] == "6"


def test_error_with_a_code_is_all_that_a_client_reads(server):
    refused = server.load("refused")

    assert refused.status == 400
    assert refused.error == (
        "load failed for model 'refused': version 1 is at UNAVAILABLE state: "
        "Unsupported: expected at most 100, got 101;\n"
    )


def test_changed_code_runs_models_that_are_loaded_again(server, folders):
    changed = BACKEND.replace("np.float32(self.number)", "np.float32(self.number + 10)")
    write_model(folders / "server" / "numbers", {"model.py": changed})

    assert server.infer("one") == [1.0]
    assert server.unload("one").status == 200
    assert eventually(lambda: not server.serves("one"))
    assert server.load("one").status == 200
    assert server.infer("one") == [11.0]


def test_processes_are_named_after_their_instances(server):
    titles = [" ".join(psutil.Process(each.pid).cmdline()) for each in server.workers()]

    assert any("two_0" in title for title in titles)
