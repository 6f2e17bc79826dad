# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"


def show_config(client, model):
    config = client.get_model_config(model)
    print(f"{model}: max_batch_size {config['max_batch_size']}")
    for tensor in config["input"] + config["output"]:
        print(f"  {tensor['name']} {tensor['data_type']} {tensor['dims']}")
    if "dynamic_batching" in config:
        print(f"  preferred_batch_size {config['dynamic_batching']['preferred_batch_size']}")


def ask(client, model, shape):
    inputs = [triton.InferInput(name, shape, "FP32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(np.full(shape, 3, np.float32))
    inputs[1].set_data_from_numpy(np.full(shape, 2, np.float32))
    result = client.infer(model, inputs)
    print("  answer", result.as_numpy("OUTPUT0").tolist(), result.as_numpy("OUTPUT1").tolist())


with triton.InferenceServerClient(url) as client:
    show_config(client, "nobatch_auto_complete")
    ask(client, "nobatch_auto_complete", [4])
    show_config(client, "batch_auto_complete")
    ask(client, "batch_auto_complete", [2, 4])
print("PASS: auto_complete")
