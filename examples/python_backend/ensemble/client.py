# SPDX-License-Identifier: Apache-2.0
import queue
import sys

import numpy as np
import tritonclient.grpc as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8001"
TEXTS = ["the cat and the dog", "die Katze und le chien"]
LINES = "the sun is warm\ndie Sonne ist warm\nle soleil est chaud\nxyz"


def tensor(*texts):
    made = triton.InferInput("TEXT", [len(texts), 1], "BYTES")
    return made.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))


with triton.InferenceServerClient(url) as client:
    best = triton.InferRequestedOutput("LANGUAGE", class_count=1)
    answer = client.infer("language", [tensor(*TEXTS)], outputs=[best])
    for text, (label,) in zip(TEXTS, answer.as_numpy("LANGUAGE"), strict=True):
        print(f"language: {text}: {label.decode()}")

    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(
        "language_of_lines",
        [tensor(LINES)],
        outputs=[triton.InferRequestedOutput("LINE"), best],
    )
    while True:
        result, error = answers.get()
        if error is not None:
            print(f"language_of_lines: {error.message()}")
            break
        line, label = (result.as_numpy(name).item().decode() for name in ("LINE", "LANGUAGE"))
        print(f"language_of_lines: {line}: {label}")
    client.stop_stream()
