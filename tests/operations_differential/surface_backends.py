# SPDX-License-Identifier: Apache-2.0
"""Which backend a model belongs to, which file runs it, and what its configuration then says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.operations_differential.asking import over_http
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

_CODE = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers where it is."""

    def initialize(self, args):
        self.facts = [__name__, pb_utils.get_model_dir(), args["model_repository"], __file__]

    def execute(self, requests):
        import numpy as np

        tensor = pb_utils.Tensor("FACTS", np.array(self.facts, np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
'''
_TENSORS = """
input { name: "X" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "FACTS" data_type: TYPE_STRING dims: 4 }
"""
_BACKENDS = ("mine", "b.c", "onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt")
_GROUPS = "instance_group [{ kind: KIND_CPU }, { kind: KIND_CPU count: 1 }, { kind: KIND_MODEL }]"

# By the model's name: its configuration, and the files of the model.
_MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a.b.c": ("", ("1/x",)),
    "dot.": ("", ("1/x",)),
    "nothing": ("", ("1/x",)),
    "mine": ('backend: "mine"', ("1/x",)),
    "mine_file": ('backend: "mine" default_model_filename: "sub/data"', ("1/x",)),
    "mine_code": ('backend: "mine"', ("1/model.py", "model.py")),
    "mine_runtime": ('backend: "mine" runtime: "model.py"', ("1/x",)),
    "mine_platform": ('backend: "mine" platform: "other"', ("1/x",)),
    "mine_library": ('backend: "mine" runtime: "libother.so"', ("1/x",)),
    "nowhere": ('backend: "nowhere"', ("1/x",)),
    "nowhere_runtime": ('backend: "nowhere" runtime: "model.py"', ("1/model.py",)),
    "ensemble_backend": ('backend: "ensemble"', ("1/x",)),
    "python_guess": ("", ("1/model.py",)),
    "python_runtime": ('backend: "python" runtime: "model.py"', ("1/model.py",)),
    "python_library": ('backend: "python" runtime: "libtriton_python.so"', ("1/model.py",)),
    "onnx_guess": ("", ("1/model.onnx", "1/model.py")),
    "onnx_first": ("", ("10/model.onnx", "2/model.py")),
    "onnx_platform": (f'platform: "onnxruntime_onnx" {_GROUPS}', ("1/x",)),
    "onnx_name": ('default_model_filename: "net.onnx"', ("1/net.onnx",)),
    "onnx_pair": ('backend: "onnxruntime" platform: "other"', ("1/x",)),
    "torch_guess": ("", ("1/model.pt",)),
    "torch_runtime": ('backend: "pytorch" runtime: "model.py"', ("1/model.pt",)),
    "torch_platform": ('platform: "libtorch"', ("1/model.pt",)),
    "graph": ('backend: "tensorflow"', ("1/model.graphdef",)),
    "saved": ("", ("1/model.savedmodel/x",)),
    "no_graph": ('backend: "tensorflow"', ("1/x",)),
    "plan": ('default_model_filename: "model.plan"', ("1/x",)),
    "xml": ("", ("1/model.xml",)),
}
_SHOWN = ("backend", "platform", "runtime", "default_model_filename", "instance_group")


def _write(folder: Path) -> None:
    """A repository, and a folder of backends beside it."""
    for backend in _BACKENDS:
        _write_file(folder / "backends" / backend / "model.py", _CODE)
    if "PEERS_DIR" in os.environ:
        python = Path(os.environ["PEERS_DIR"], "backends", "python")
        (folder / "backends" / "python").symlink_to(python)
    for name, (settings, files) in _MODELS.items():
        _write_file(folder / "models" / name / "config.pbtxt", settings + _TENSORS)
        for file in files:
            text = _CODE if file.endswith(".py") else ""
            _write_file(folder / "models" / name / file, text)


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def load(name: str) -> Callable[[Server], Observation]:
    """Load a model; what its configuration says and what its code sees, or the reason."""

    def ask(server: Server) -> Observation:
        loaded = over_http(server, f"/v2/repository/models/{name}/load", {})
        if loaded["status"] != 200:
            return _without_user_folder(_without_reason(loaded))
        config = over_http(server, f"/v2/models/{name}/config")["body"]
        answer = over_http(server, f"/v2/models/{name}/infer", {"inputs": []})
        return {
            "config": {key: config[key] for key in _SHOWN},
            "facts": answer["body"]["outputs"][0]["data"],
        }

    return ask


def _without_reason(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Ours says in the answer why a model could not be read; the real one only in its log."""
    start, found, _ = seen["body"]["error"].partition("failed to poll from model repository")
    return {**seen, "body": {"error": start + found}}


def _without_user_folder(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Ours also looks in a folder of the user."""
    text = re.sub(r" '[^']*/pytriton/backends/[^']*'", "", seen["body"]["error"])
    return {**seen, "body": {"error": text}}


SURFACE = Surface(
    "backends",
    cases=tuple(Case(name, load(name)) for name in _MODELS),
    setup=Setup(
        (
            "--model-repository={models}/models",
            "--backend-directory={models}/backends",
            "--model-control-mode=explicit",
        ),
        models=_write,
    ),
)
