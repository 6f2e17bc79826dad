# SPDX-License-Identifier: Apache-2.0
import sys
import urllib.request

import numpy as np
import tritonclient.http as triton

url, metrics_url = sys.argv[1:] if len(sys.argv) > 1 else ("127.0.0.1:8000", "127.0.0.1:8002")
texts = ["one", "three little words", "", "to be or not to be that is the question here"]

with triton.InferenceServerClient(url) as client:
    for text in texts:
        tensor = triton.InferInput("TEXT", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode()], np.object_))
        print(repr(text), client.infer("word_count", [tensor]).as_numpy("WORDS").item())

with urllib.request.urlopen(f"http://{metrics_url}/metrics") as page:
    for line in page.read().decode().splitlines():
        if "words_total" in line or "text_length_words" in line:
            print(line)
