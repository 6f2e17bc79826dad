# SPDX-License-Identifier: Apache-2.0
"""Models that a model loads, unloads and asks about."""

import json

import triton_python_backend_utils as pb_utils

CONFIG = {
    "backend": "python",
    "max_batch_size": 0,
    "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
}
SOURCE = b"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.array([b"from memory"], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


def ask(name):
    request = pb_utils.InferenceRequest(inputs=[], requested_output_names=["OUT"], model_name=name)
    return request.exec()


def readiness(_request):
    return {
        "ready": lambda: pb_utils.is_model_ready("square"),
        "ready of a version": lambda: pb_utils.is_model_ready("square", "1"),
        "ready by keywords": lambda: pb_utils.is_model_ready(
            model_name="square", model_version="1"
        ),
        "not loaded": lambda: pb_utils.is_model_ready("on_demand"),
        "unknown": lambda: pb_utils.is_model_ready("nowhere"),
        "unknown version": lambda: pb_utils.is_model_ready("square", "7"),
        "bad version": lambda: pb_utils.is_model_ready("square", "new"),
        "negative version": lambda: pb_utils.is_model_ready("square", "-1"),
        "version a number": lambda: pb_utils.is_model_ready("square", 1),
        "name None": lambda: pb_utils.is_model_ready(None),
        "no name": lambda: pb_utils.is_model_ready(""),
    }


def loading(_request):
    files = {"file:1/model.py": SOURCE}
    text = json.dumps(CONFIG)
    return {
        "load": lambda: pb_utils.load_model("on_demand"),
        "then it is ready": lambda: pb_utils.is_model_ready("on_demand"),
        "and answers": lambda: ask("on_demand"),
        "load again": lambda: pb_utils.load_model(model_name="on_demand"),
        "load with a configuration": lambda: pb_utils.load_model("on_demand", config=text),
        "load with files": lambda: pb_utils.load_model("on_demand", text, files),
        "which answers": lambda: ask("on_demand"),
        "load from files alone": lambda: pb_utils.load_model(
            "pbd_memory", config=text, files=files
        ),
        "which is ready": lambda: pb_utils.is_model_ready("pbd_memory"),
        "load unknown": lambda: pb_utils.load_model("nowhere"),
        "load broken configuration": lambda: pb_utils.load_model("on_demand", config="{"),
        "load files without configuration": lambda: pb_utils.load_model("on_demand", files=files),
        "load nothing": lambda: pb_utils.load_model(""),
        "load None": lambda: pb_utils.load_model(None),
        "load configuration None": lambda: pb_utils.load_model("on_demand", config=None),
        "load files a list": lambda: pb_utils.load_model("on_demand", text, [1]),
        "load files of text": lambda: pb_utils.load_model(
            "on_demand", text, {"file:1/model.py": "a"}
        ),
        "load a model that fails": lambda: pb_utils.load_model("failing_initialize"),
        "still ready": lambda: pb_utils.is_model_ready("on_demand"),
    }


def unloading(_request):
    return {
        "unload": lambda: pb_utils.unload_model("pbd_memory"),
        "unload with dependents": lambda: pb_utils.unload_model(
            model_name="on_demand", unload_dependents=True
        ),
        "unload again": lambda: pb_utils.unload_model("on_demand"),
        "unload unknown": lambda: pb_utils.unload_model("nowhere"),
        "unload None": lambda: pb_utils.unload_model(None),
        "unload dependents text": lambda: pb_utils.unload_model("on_demand", "yes"),
    }


GROUPS = {
    "control readiness": readiness,
    "control loading": loading,
    "control unloading": unloading,
}
