# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
from openai import OpenAI

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
for name in ("characters", "pairs"):
    with ModelClient(url, name, init_timeout_s=60) as waiting:
        waiting.wait_for_model(60)

client = OpenAI(base_url=f"{url}/v1", api_key="none")
print("models:", *(each.id for each in client.models.list()))

answer = client.chat.completions.create(
    model="characters", messages=[{"role": "user", "content": "What is a batch?"}]
)
print(answer.choices[0].message.content.strip())

stream = client.chat.completions.create(
    model="characters",
    messages=[{"role": "user", "content": "What is a stream?"}],
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f" ({chunk.usage.completion_tokens} tokens)")

texts = client.completions.create(
    model="characters", prompt="A batch is", stop=["that"], n=2, temperature=0
)
print([choice.text for choice in texts.choices], texts.choices[0].finish_reason)

vectors = client.embeddings.create(
    model="pairs", input=["a stream of tokens", "streams of a token", "apples"]
)
one, two, three = (np.array(each.embedding) for each in vectors.data)
print(f"similar: {one @ two:.2f}, not similar: {one @ three:.2f}")
