# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be loaded: each says why, and a corrected one is loaded without a restart."""

from __future__ import annotations

import re

import pytest

from tests.repository_e2e.model_files import code, config, model

MISMATCH = """
@staticmethod
def auto_complete_config(config):
    config.add_output({"name": "Y", "data_type": "TYPE_INT64", "dims": [-1]})
    return config
"""
LIMIT = 'parameters { key: "LOAD_TIMEOUT_SECS" value { string_value: "0.5" } }'

# By name: the files, and what the reason says.
BROKEN = {
    "no_model_py": (
        {"config.pbtxt": config(), "1/other.py": ""},
        r"Internal: Python model file not found in '.*/no_model_py/1/model\.py'",
    ),
    "empty": (model(""), r"module '1\.model' has no attribute 'TritonPythonModel'"),
    "syntax_error": (
        model("class TritonPythonModel:\n    def execute(self, requests)\n"),
        r"SyntaxError: expected ':' \(model\.py, line 2\)",
    ),
    "import_error": (
        model("import there_is_no_such_module\n" + code()),
        r"ModuleNotFoundError: No module named 'there_is_no_such_module'(.|\n)*model\.py\(1\)",
    ),
    "no_class": (
        model("class Model: pass"),
        r"module '1\.model' has no attribute 'TritonPythonModel'",
    ),
    "no_execute": (
        model("class TritonPythonModel:\n    def initialize(self, args): pass\n"),
        r"Python model .*/no_execute/1/model\.py does not implement `execute` method",
    ),
    "initialize_raises": (
        model(code(initialize="raise ValueError('weights are bad')")),
        r"ValueError: weights are bad(.|\n)*model\.py\(\d+\): initialize",
    ),
    "initialize_hangs": (
        model(code(initialize="threading.Event().wait()"), config(LIMIT)),
        r"Unavailable: it was not loaded within 0\.5 s",
    ),
    "initialize_exits": (
        model(code(initialize="os._exit(0)")),
        r"Stub process 'initialize_exits_0_0' is not healthy. Exited with code 0.",
    ),
    "initialize_crashes": (
        model(code(initialize="os.kill(os.getpid(), signal.SIGSEGV)")),
        r"Stub process 'initialize_crashes_0_0' is not healthy. Killed by SIGSEGV \(11\).",
    ),
    "bad_pbtxt": (
        model(settings='backend: "python"\nmax_batch_size: many\n'),
        r"config\.pbtxt:2:17",
    ),
    "unknown_field": (
        model(settings='backend: "python"\n  colour: "blue"\n'),
        r"config\.pbtxt:2:3.*colour",
    ),
    "wrong_dtype": (
        model(settings=config().replace("TYPE_FP32", "TYPE_FLOAT", 1)),
        r"config\.pbtxt:3:\d+.*TYPE_FLOAT",
    ),
    "mismatch": (
        model(code(methods=MISMATCH)),
        r"expects datatype TYPE_FP32 for output 'Y', model provides TYPE_INT64",
    ),
}


@pytest.fixture(scope="module")
def server(start_module_server):
    repository = {name: files for name, (files, _) in BROKEN.items()}
    return start_module_server(repository, flags=["--model-control-mode=explicit"]).await_ready()


@pytest.mark.parametrize("name", BROKEN)
def test_broken_model_says_why_and_is_loaded_once_it_is_mended(server, name):
    _, reason = BROKEN[name]

    refused = server.load(name)
    row = server.index()[name]
    is_ready = server.get("/v2/health/ready").status
    server.write(name, model(code("y = x * 2")))
    loaded = server.load(name)

    assert refused.status == (500 if "pbtxt" in reason else 400)  # as Triton has it
    assert row["state"] == "UNAVAILABLE"
    assert re.search(reason, row["reason"]), row["reason"]
    assert re.search(reason, refused.error), refused.error
    assert is_ready == 400
    assert loaded.status == 200, loaded.body
    assert server.index()[name] == {"name": name, "version": "1", "state": "READY"}
    assert server.get("/v2/health/ready").status == 200
    assert server.infer(name, 3.0) == [6.0]
