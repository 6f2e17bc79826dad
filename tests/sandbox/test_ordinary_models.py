# SPDX-License-Identifier: Apache-2.0
"""Ordinary models in sandboxes: examples, backends of frameworks and in C, what libraries do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.http_client import infer
from tests.e2e.waiting import eventually
from tests.framework_backends.tree_models import ROWS, THIRDS, make_model, xgboost_model
from tests.native_backend.building import backend_directory
from tests.native_backend.building import missing as no_compiler
from tests.repository_e2e.model_files import code, config, model, write_model
from tests.repository_e2e.server_process import ServerProcess
from tests.sandbox.conftest import require, this_machine
from tests.started_command import ROOT

pytestmark = pytest.mark.e2e
EXAMPLES = ROOT / "examples" / "python_backend"
# By example, the ports that its client asks.
CLIENTS = {
    "add_sub": ["http_port"],
    "auto_complete": ["http_port"],
    "bls": ["http_port"],
    "custom_metrics": ["http_port", "metrics_port"],
    "ensemble": ["grpc_port"],
    "sequence": ["grpc_port"],
}
USES = {
    "a_pool_of_processes": """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            y = [pool.map(abs, [-1.0, -2.0])]
    """,
    "a_program": """
        import subprocess
        done = subprocess.run(["echo", "1"], capture_output=True, text=True, check=True)
        y = [[float(done.stdout), 2.0]]
    """,
    "temporary_files": """
        import shutil, tempfile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a")
            np.save(path, [[1.0, 2.0]])
            shutil.copy2(path + ".npy", path + ".copy")
            os.rename(path + ".copy", path + ".moved")
            y = np.load(path + ".moved")
    """,
    "shared_memory": """
        from multiprocessing import shared_memory
        memory = shared_memory.SharedMemory(create=True, size=16)
        memory.buf[:2] = bytes([1, 2])
        y = [[float(each) for each in memory.buf[:2]]]
        memory.close()
        memory.unlink()
    """,
    "threads_and_an_event_loop": """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as threads:
            y = [list(threads.map(float, ["1", "2"]))]
        asyncio.run(asyncio.sleep(0))
    """,
    "facts_about_the_machine": """
        import platform, time, locale, ssl
        assert os.cpu_count() and len(os.sched_getaffinity(0))
        assert "MemTotal" in open("/proc/meminfo").read()
        assert "VmRSS" in open("/proc/self/status").read()
        assert len(os.urandom(8)) == 8 and time.localtime() and platform.platform()
        assert np.linalg.svd(np.eye(100))[1].sum() > 99
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        y = [[1.0, 2.0]]
    """,
    "its_own_files": """
        beside = os.path.join(os.path.dirname(__file__), "numbers.json")
        import json
        y = [json.load(open(beside))]
    """,
    "a_child_that_it_ends": """
        import subprocess
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        assert child.wait() == -signal.SIGTERM
        y = [[1.0, 2.0]]
    """,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    require("landlock", "seccomp")
    folder = tmp_path_factory.mktemp("ordinary")
    models = folder / "models"
    for name, execute in USES.items():
        write_model(models / name, {**model(code(execute)), "1/numbers.json": json.dumps([1, 2])})
    write_model(models / "printer", model(code("print('printed by a model', flush=True)\ny = x")))
    repositories = [models, *(EXAMPLES / name / "model_repository" for name in CLIENTS)]
    with ServerProcess(folder, repositories, ["--sandbox=on"]) as process:
        yield process.await_ready()


@pytest.mark.parametrize("name", CLIENTS)
def test_example_runs_in_a_sandbox(server, name):
    urls = [f"127.0.0.1:{getattr(server, port)}" for port in CLIENTS[name]]
    command = [sys.executable, EXAMPLES / name / "client.py", *urls]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", USES)
def test_model_in_a_sandbox_can_use(server, name):
    if name in ("shared_memory", "a_pool_of_processes") and not this_machine().has_mounts:
        pytest.skip("without mounts of its own, a worker has no /dev/shm")

    assert server.infer(name, 1.0, 2.0) == [1.0, 2.0]


def test_output_of_a_model_in_a_sandbox_is_printed_by_the_server(server):
    server.infer("printer", 1.0)

    assert eventually(lambda: "printed by a model" in server.stdout)


@pytest.mark.skipif(bool(no_compiler()), reason=no_compiler() or "-")
def test_backend_in_c_runs_in_a_sandbox(start_server, tmp_path):
    require("landlock", "seccomp")
    text = (
        'backend: "identity"\nmax_batch_size: 8\n'
        'input [{ name: "FP32" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        'output [{ name: "OUT_FP32" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
    )
    compiler = Path(shutil.which(os.environ.get("CC", "cc"))).resolve()  # not always in /usr
    server = start_server(
        {"identity": {"config.pbtxt": text, "1/file": ""}},
        flags=[
            f"--sandbox=on,read={compiler.parent.parent}",
            f"--backend-directory={backend_directory()}",
        ],
        environment={"PYTRITON_HOME": str(tmp_path / "empty")},  # nothing was compiled before
    ).await_ready()

    answer = infer(server.http_port, "identity", {"FP32": np.array([[1, 2]], np.float32)})

    assert answer["OUT_FP32"].tolist() == [[1, 2]]
    assert "which is slower" not in server.output


@pytest.mark.part("backends")
def test_backends_of_frameworks_run_in_sandboxes(tmp_path):
    require("landlock", "seccomp")
    joblib = pytest.importorskip("joblib")
    linear_model = pytest.importorskip("sklearn.linear_model")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    models = tmp_path / "models"
    lines = linear_model.LogisticRegression().fit(ROWS, THIRDS)
    save = lambda path: joblib.dump(lines, path)  # noqa: E731
    make_model(models / "lines", "model.joblib", save, 'backend: "sklearn"')
    make_model(models / "trees", "xgboost.ubj", xgboost_model("multi").save_model, 'backend: "fil"')
    make = [sys.executable, ROOT / "examples" / "backends" / "onnx" / "make_model.py"]
    save = lambda path: subprocess.run([*make, path], check=True)  # noqa: E731
    make_model(models / "xor", "model.onnx", save, 'backend: "onnxruntime"')
    flags = ["--sandbox=on", "--backend-config=sklearn,allow-pickle=true"]

    with ServerProcess(tmp_path, [models], flags) as server:
        server.await_ready()
        ask = lambda name, tensor, rows: infer(server.http_port, name, {tensor: rows})  # noqa: E731
        classes = ask("lines", "input__0", ROWS)["output__0"]
        trees = ask("trees", "input__0", ROWS)["output__0"]
        xor = ask("xor", "X", np.array([[0, 1], [1, 1]], np.float32))["Y"]

    assert classes[:, 0].tolist() == lines.predict(ROWS).tolist()
    assert trees[:, 0].tolist() == xgboost_model("multi").inplace_predict(ROWS).tolist()
    assert xor.ravel().tolist() == [1.0, 0.0]


WHERE = """
    try:
        seen = len(open(os.path.join(os.path.dirname(__file__), "..", "..", "other")).read())
    except PermissionError:
        seen = 0
    y = [[float(sys.executable.endswith("own/environment/bin/python")), float(seen)]]
"""


def own_python(folder, path):
    """Write a model with an interpreter of its own, as authors of models bring it."""
    text = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'
    write_model(folder / "own", model(code(WHERE), config(text)))
    write_model(folder, {"other": "a secret"})


def test_python_of_a_model_runs_in_its_sandbox(tmp_path):
    require("landlock", "seccomp")
    models = tmp_path / "models"
    own_python(models, "$$TRITON_MODEL_DIRECTORY/environment")
    write_model(models / "own" / "environment", {"bin/activate": ""})
    (models / "own" / "environment" / "bin" / "python").symlink_to(sys.executable)

    with ServerProcess(tmp_path, [models], ["--sandbox=on"]) as server:
        row = server.await_ready().infer("own", 1.0)

    assert row == [1.0, 0.0]


def test_python_outside_of_a_model_needs_a_grant(tmp_path):
    require("landlock", "seccomp")
    models = tmp_path / "models"
    own_python(models, str(tmp_path / "own" / "environment"))
    write_model(tmp_path / "own" / "environment", {"bin/activate": ""})
    (tmp_path / "own" / "environment" / "bin" / "python").symlink_to(sys.executable)

    with ServerProcess(tmp_path, [models], ["--sandbox=on"]) as server:
        assert server.exit_code() == 1
        output = server.output
    allowed = ["--sandbox=on", f"--sandbox-allow=read={tmp_path / 'own'}"]
    with ServerProcess(tmp_path, [models], allowed) as server:
        row = server.await_ready().infer("own", 1.0)

    assert f"--sandbox-allow=read={tmp_path}/own/environment would" in output
    assert row == [1.0, 0.0]
