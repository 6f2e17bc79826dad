# SPDX-License-Identifier: Apache-2.0
"""A matrix product over several processes: each has some columns of the weights.

Rank 0 listens on MASTER_PORT. It sends each input to the others and joins what they answer.
"""

import contextlib
import os
import pathlib
import signal
import socket
import time

import numpy as np
import triton_python_backend_utils as pb_utils

COLUMNS = 12


def receive(sock, size):
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


class TritonPythonModel:
    """y = x @ W, where W has the numbers from 0."""

    def initialize(self, args):
        self.rank, self.size = int(args["model_group_rank"]), int(args["model_group_size"])
        assert (self.rank, self.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        if args.get("fails_on") == str(self.rank):
            raise ValueError("no weights for this rank")
        weights = np.arange(2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS)
        share = COLUMNS // self.size
        self.weights = weights[:, self.rank * share : (self.rank + 1) * share]
        self.folder = pathlib.Path(args["folder"])
        (self.folder / f"pid-{self.rank}").write_text(str(os.getpid()))
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank == 0:
            with socket.create_server(address) as listener:
                self.others = [listener.accept()[0] for _ in range(self.size - 1)]
            self.others.sort(key=lambda other: receive(other, 1))
        else:
            self.first = self.connect(address)
            self.first.sendall(bytes([self.rank]))

    def connect(self, address):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(address)
            time.sleep(0.01)

    def run_rank(self):
        pb_utils.Logger.log_info(f"rank {self.rank} waits for work")
        with contextlib.suppress(EOFError):
            while True:
                x = np.frombuffer(receive(self.first, 8), np.float32)
                if x[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                pb_utils.Logger.log_verbose(f"rank {self.rank} multiplies")
                self.first.sendall((x @ self.weights).tobytes())

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().reshape(2)
        for other in self.others:
            other.sendall(x.tobytes())
        parts = [x @ self.weights]
        share = 4 * COLUMNS // self.size
        try:
            parts += [np.frombuffer(receive(other, share), np.float32) for other in self.others]
        except EOFError:
            signal.pause()  # as a collective operation hangs when one of its processes has ended
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.concatenate(parts)[None])])

    def finalize(self):
        if self.rank == 0:
            for other in self.others:
                other.close()
        (self.folder / f"finalized-{self.rank}").touch()
