# SPDX-License-Identifier: Apache-2.0
import sys

from openai import OpenAI

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with ModelClient(url, "gpt2", init_timeout_s=120) as waiting:
    waiting.wait_for_model(120)

client = OpenAI(base_url=f"{url}/v1", api_key="none")
question = [{"role": "user", "content": "What do you think?"}]
stream = client.chat.completions.create(
    model="gpt2",
    messages=question,
    max_tokens=20,
    seed=1,
    stream=True,
    stream_options={"include_usage": True},
)
text, usage, reason = "", None, None
for chunk in stream:
    for choice in chunk.choices:
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
    usage = chunk.usage or usage
print(f"{len(text)} characters, {usage.completion_tokens} tokens, {reason}")

again = client.chat.completions.create(model="gpt2", messages=question, max_tokens=20, seed=1)
print("the same again:", again.choices[0].message.content == text)
