# SPDX-License-Identifier: Apache-2.0
"""A backend for tables: a model is a `table.csv` whose lines are a key and its numbers."""

import csv
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


def read_table():
    """The keys with the numbers of their lines, and all numbers, of the model that is loaded."""
    path = Path(pb_utils.get_model_dir(), "table.csv")
    with path.open(newline="") as file:
        lines = [line for line in csv.reader(file) if line]
    keys = {line[0].encode(): number for number, line in enumerate(lines)}
    return keys, np.array([line[1:] for line in lines], np.float32)


class TritonPythonModel:
    """An instance of a table."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        """Fill in what the file says, so that a model needs only the name of its backend."""
        _, numbers = read_table()
        auto_complete_model_config.set_max_batch_size(64)
        auto_complete_model_config.set_dynamic_batching()
        for add, name, datatype, columns in (
            (auto_complete_model_config.add_input, "KEY", "TYPE_STRING", 1),
            (auto_complete_model_config.add_output, "NUMBERS", "TYPE_FP32", numbers.shape[1]),
        ):
            add({"name": name, "data_type": datatype, "dims": [columns]})
        return auto_complete_model_config

    def initialize(self, args):
        """Read the table, and what the server's command line says for this backend."""
        self.keys, self.numbers = read_table()
        settings = getattr(pb_utils, "get_backend_config", dict)()  # Triton does not have it
        self.default = self.keys.get(settings.get("default", "").encode())

    def execute_batch(self, batch):
        """Answer all requests at once: one array holds the keys of all of them."""
        lines = self.find(batch.inputs["KEY"])
        start = 0
        for position, rows in enumerate(batch.rows):
            if -1 in lines[start : start + rows]:
                batch.fail(position, self.error())
            start += rows
        return {"NUMBERS": self.numbers[lines]}

    def execute(self, requests):
        """Answer requests one by one; only Triton calls this."""
        responses = []
        for request in requests:
            lines = self.find(pb_utils.get_input_tensor_by_name(request, "KEY").as_numpy())
            output = pb_utils.Tensor("NUMBERS", self.numbers[lines])
            error = self.error() if -1 in lines else None
            responses.append(pb_utils.InferenceResponse([output], error))
        return responses

    def find(self, keys):
        """The line of each key; -1 where there is none."""
        missing = -1 if self.default is None else self.default
        return [self.keys.get(key, missing) for key in keys.ravel()]

    def error(self):
        """What a client gets that asks for a key that is not there."""
        return pb_utils.TritonError("no such key in the table", pb_utils.TritonError.NOT_FOUND)
