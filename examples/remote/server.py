# SPDX-License-Identifier: Apache-2.0
from pytriton.triton import Triton

if __name__ == "__main__":
    with Triton() as triton:
        triton.serve()  # no model of its own: other processes bring theirs
