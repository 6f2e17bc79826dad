# SPDX-License-Identifier: Apache-2.0
import os

from pytriton.triton import Triton, TritonSecurityConfig

if __name__ == "__main__":
    security = TritonSecurityConfig(access_token=os.environ["MODEL_SERVER_TOKEN"])
    with Triton(security_config=security) as triton:
        triton.serve()  # no model of its own: other processes bring theirs
