# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonSecurityConfig


@batch
def brighten(image):
    return {"image": np.minimum(image.astype(np.uint16) + 50, 255).astype(np.uint8)}


key = "example"  # clients need it to register their memory
with Triton(security_config=TritonSecurityConfig(access_token=key)) as triton:
    image = Tensor(name="image", dtype=np.uint8, shape=(-1, -1, 3))
    triton.bind("Brighten", brighten, inputs=[image], outputs=[image])
    triton.serve()
