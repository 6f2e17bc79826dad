# SPDX-License-Identifier: Apache-2.0
"""A model that does what its arguments and its requests' parameters tell it to."""

import atexit
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

_never = threading.Event()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


def hang():
    _never.wait()


def raise_error():
    raise ValueError("as it was told")


def nothing():
    pass


ACTIONS = {
    "kill": kill,
    "crash": crash,
    "leave": leave,
    "hang": hang,
    "raise": raise_error,
    "": nothing,
}


def call_other(number):
    request = pb_utils.InferenceRequest(
        model_name="other",
        inputs=[pb_utils.Tensor("x", np.array([number], np.int32))],
        requested_output_names=["y"],
    )
    return int(pb_utils.get_output_tensor_by_name(request.exec(), "y").as_numpy()[0])


def fork_and_call(numbers):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        return pool.map(call_other, numbers)


def mark_late(path):
    time.sleep(1.5)
    pathlib.Path(path).touch()


class TritonPythonModel:
    """Answers with its input, its process and what the request asks for."""

    @staticmethod
    def auto_complete_config(config):
        if os.environ.get("TEST_ACTION"):
            ACTIONS[os.environ["TEST_ACTION"]]()
        config.set_max_batch_size(7)
        return config

    def initialize(self, args):
        self.arguments = args
        folder = args.get("folder")
        if folder:  # wait until all are here: none of them can go on alone
            (pathlib.Path(folder) / str(os.getpid())).touch()
            while len(list(pathlib.Path(folder).iterdir())) < int(args["count"]):
                _never.wait(0.005)
        ACTIONS[args.get("initialize", "")]()

    def execute(self, requests):
        responses = []
        for request in requests:
            parameters = json.loads(request.parameters() or "{}")
            ACTIONS[parameters.get("action", "")]()
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if "calls" in parameters:
                x = np.array([fork_and_call(range(parameters["calls"]))], np.float32)
            if "call" in parameters:
                x = np.array([[call_other(parameters["call"])]], np.float32)
            if "program" in parameters:
                self.program = subprocess.Popen(parameters["program"].split())
            if "variable" in parameters:
                x = np.array([[os.environ[parameters["variable"]].encode()]], object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses

    def finalize(self):
        if "mark_at_exit" in self.arguments:
            atexit.register(mark_late, self.arguments["mark_at_exit"])
        if "mark" in self.arguments:
            pathlib.Path(self.arguments["mark"]).touch()
        ACTIONS[self.arguments.get("finalize", "")]()
