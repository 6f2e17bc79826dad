# SPDX-License-Identifier: Apache-2.0
"""What a model finds in its process: arguments as in Triton, and memory that it cannot shrink."""

from __future__ import annotations

import sys

import numpy as np
import pytest

X = np.array([[1.0]], np.float32)
LARGE = np.ones((1, 1 << 18), np.float32)


def test_arguments_are_those_of_triton(worker):
    rig = worker(
        """
import argparse

class TritonPythonModel:
    def initialize(self, args):
        argparse.ArgumentParser().parse_args()

    def execute(self, requests):
        output = pb_utils.Tensor("y", np.array([[repr(sys.argv)]], np.object_))
        return [pb_utils.InferenceResponse([output])]
"""
    )
    (outputs,) = rig.run({"x": X})

    assert outputs["y"].tolist() == [[b"['']"]]


SHRINKING_MODEL = """
def is_memory(descriptor):
    try:
        return "memfd:pytriton" in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # closed meanwhile
        return False

def shrink(descriptor):
    try:
        os.ftruncate(descriptor, 0)
    except PermissionError:
        return "refused"
    return "shrunk"

class TritonPythonModel:
    def execute(self, requests):
        found = [each for each in map(int, os.listdir("/proc/self/fd")) if is_memory(each)]
        words = [shrink(each) for each in found]
        inodes = {os.fstat(each).st_ino for each in found}
        counts = np.array([[len(inodes), words.count("shrunk")]], np.float32)
        rows = [counts, np.full((1, 1 << 18), 2, np.float32)]
        tensors = [pb_utils.Tensor(name, row) for name, row in zip("yz", rows)]
        return [pb_utils.InferenceResponse(tensors)]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has seals")
def test_model_cannot_shrink_memory_of_either_side(worker):
    rig = worker(SHRINKING_MODEL, output_names=["y", "z"])
    for count in (1, 2):  # the server's, then also the worker's own
        (outputs,) = rig.run({"x": LARGE})
        assert outputs["z"].max() == 2
        assert outputs["y"].tolist() == [[count, 0]]
