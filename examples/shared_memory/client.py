# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
token = {"triton-access-token": "example"}
image = np.full((1, 1080, 1920, 3), 100, np.uint8)

with ModelClient(url, "Brighten") as waiting:
    waiting.wait_for_model(60)

# One object: the input is at its beginning, the output behind it.
handle = shm.create_shared_memory_region("images", "/pytriton-example", 2 * image.nbytes)
try:
    shm.set_shared_memory_region(handle, [image])
    with triton_http.InferenceServerClient(url.removeprefix("http://")) as client:
        client.register_system_shared_memory(
            "images", "/pytriton-example", 2 * image.nbytes, headers=token
        )
        image_input = triton_http.InferInput("image", list(image.shape), "UINT8")
        image_input.set_shared_memory("images", image.nbytes)
        image_output = triton_http.InferRequestedOutput("image")
        image_output.set_shared_memory("images", image.nbytes, offset=image.nbytes)
        result = client.infer("Brighten", [image_input], outputs=[image_output])
        print("response:", result.get_response()["outputs"])
        brighter = shm.get_contents_as_numpy(handle, np.uint8, image.shape, image.nbytes).copy()
        client.unregister_system_shared_memory("images", headers=token)
finally:
    shm.destroy_shared_memory_region(handle)

print("pixel:", image[0, 0, 0].tolist(), "->", brighter[0, 0, 0].tolist())
