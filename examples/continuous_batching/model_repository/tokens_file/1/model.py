# SPDX-License-Identifier: Apache-2.0
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

STEP_S = 0.01  # a step takes about as long for many requests as for one


def next_letters(letters):
    """Stands for a language model: one step for all requests of the batch, a letter for each."""
    time.sleep(STEP_S)
    return (letters - ord("a") + 1) % 26 + ord("a")


class Member:
    """A request of the running batch: its last letter, and how many it still gets."""

    def __init__(self, request):
        self.sender = request.get_response_sender()
        self.letter = ord(_input(request, "prompt")[-1:])
        self.left = int(_input(request, "count"))

    def is_done(self):
        return self.left <= 0 or self.sender.is_cancelled()

    def send(self, letter, batch_size):
        self.letter = letter
        self.left -= 1
        token = np.array([chr(letter).encode()], dtype=np.object_)
        outputs = [
            pb_utils.Tensor("token", token),
            pb_utils.Tensor("batch_size", np.array([batch_size], np.int32)),
        ]
        self.sender.send(pb_utils.InferenceResponse(outputs))

    def end(self):
        self.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    """`execute` adds requests to the running batch and returns; a thread does the rest."""

    def initialize(self, args):
        self._joining = []
        self._changed = threading.Condition()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def execute(self, requests):
        with self._changed:
            self._joining += [Member(request) for request in requests]
            self._changed.notify()

    def finalize(self):
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()

    def _run(self):
        batch = []
        while True:
            with self._changed:
                while not (batch or self._joining or self._is_ending):
                    self._changed.wait()
                if self._is_ending:
                    return
                batch += self._joining
                self._joining = []
            done = [member for member in batch if member.is_done()]
            for member in done:
                batch.remove(member)
                member.end()
            if batch:
                letters = next_letters(np.array([member.letter for member in batch]))
                for member, letter in zip(batch, letters.tolist(), strict=True):
                    member.send(letter, len(batch))


def _input(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
