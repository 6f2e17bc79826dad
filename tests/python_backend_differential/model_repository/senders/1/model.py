# SPDX-License-Identifier: Apache-2.0
"""Sends responses by script, and remembers what each call of `send` did.

A script is `steps > what execute does last > steps of a thread`; the script `recall` answers what
the calls for the request before did. The thread follows its steps once execute has returned.
"""

import json
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

RETURN_TAKES_S = 0.25  # enough to process what execute has returned


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], dtype=object))])


def failure():
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError("sent", pb_utils.TritonError.UNAVAILABLE)
    )


STEPS = {
    "send": lambda sender, name: sender.send(response(name)),
    "last": lambda sender, name: sender.send(
        response(name), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ),
    "keyword": lambda sender, name: sender.send(
        response=response(name), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ),
    "final": lambda sender, _: sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL),
    "final none": lambda sender, _: sender.send(
        None, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ),
    "nothing": lambda sender, _: sender.send(),
    "error": lambda sender, _: sender.send(failure()),
    "error last": lambda sender, _: sender.send(
        failure(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ),
    "flag 2": lambda sender, name: sender.send(response(name), 2),
    "flag 3": lambda sender, name: sender.send(response(name), 3),
    "flag text": lambda sender, name: sender.send(response(name), "1"),
    "text": lambda sender, name: sender.send(name, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL),
    "tensor": lambda sender, _: sender.send(
        pb_utils.Tensor("OUT", np.zeros(1)), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ),
    "empty": lambda sender, _: sender.send(
        pb_utils.InferenceResponse([]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ),
    "unknown output": lambda sender, _: sender.send(
        pb_utils.InferenceResponse([pb_utils.Tensor("NOWHERE", np.zeros(1, np.int8))]),
        pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    ),
}


def is_executing(thread):
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not TritonPythonModel.execute.__code__:
        frame = frame.f_back
    return frame is not None


class TritonPythonModel:
    """Follows scripts; the outcomes of one are read by the next request."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.outcomes = []
        self.thread = None
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        request = requests[0]
        script = request.inputs()[0].as_numpy()[0].decode()
        sender = request.get_response_sender()
        if script == "recall":
            return self._recall(sender)
        self.outcomes, self.thread = [], None
        before, last, after = (part.strip() for part in script.split(">"))
        self._follow("before", before, sender)
        if after:
            execution = threading.get_ident(), self.executions
            self.thread = threading.Thread(
                target=self._follow_later, args=(*execution, after, sender)
            )
            self.thread.start()
        return self._end(last)

    def _recall(self, sender):
        if self.thread is not None:
            self.thread.join()
        answer = response(json.dumps(self.outcomes))
        if not self.is_decoupled:
            return [answer]
        return sender.send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _follow_later(self, thread, execution, steps, sender):
        while self.executions == execution and is_executing(thread):
            time.sleep(0.001)
        time.sleep(RETURN_TAKES_S)
        self._follow("after", steps, sender)

    def _follow(self, place, steps, sender):
        for number, step in enumerate(filter(None, (step.strip() for step in steps.split(",")))):
            name = f"{place} {number}"
            try:
                STEPS[step](sender, name)
            except TypeError:
                self.outcomes.append(f"{name}: TypeError")
            except Exception as error:  # noqa: BLE001  whatever it is, it is recalled
                self.outcomes.append(f"{name}: {type(error).__name__}: {error}")
            else:
                self.outcomes.append(f"{name}: sent")

    def _end(self, last):
        if last == "raise":
            raise ValueError("after sending")
        return {"none": None, "none entry": [None], "response": [response("returned")]}[last]
