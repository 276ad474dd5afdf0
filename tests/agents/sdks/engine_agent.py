"""Talks to inference engines: vLLM's and SGLang's extras, older completions, tokens, scores."""

import os

import httpx
from openai import OpenAI

ROOT = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
client = OpenAI()
extras = {
    "min_p": 0.05,
    "top_k": 20,
    "structured_outputs": {"regex": "Answer.*"},
    "prompt_logprobs": 1,
    "chat_template_kwargs": {"enable_thinking": True},
}
said = [{"role": "user", "content": "hello"}]


def ask(**more):
    return client.chat.completions.create(model="qwen-x", messages=said, seed=7, extra_body=extras, **more)


answer = ask(temperature=0.6, logprobs=True, top_logprobs=2)
message = answer.choices[0].message
print("chat", answer.system_fingerprint, message.reasoning_content, message.content)
print("logprobs", [(each.token, each.logprob) for each in answer.choices[0].logprobs.content])
for chunk in ask(stream=True):
    print("chunk", chunk.model_dump_json())
print("text", client.completions.create(model="qwen-x", prompt="Once", max_tokens=9, extra_body=extras).choices[0].text)
for chunk in client.completions.create(model="qwen-x", prompt="Once", stream=True):
    print("text chunk", chunk.model_dump_json())


def post(path, **body):
    return httpx.post(ROOT + path, json=body, timeout=30).raise_for_status().json()


print("tokens", post("/tokenize", model="qwen-x", prompt="Once")["tokens"])
print("rerank", post("/rerank", model="rank-x", query="which?", documents=["one", "two"])["results"])
print("score", post("/score", model="rank-x", text_1="which?", text_2=["one", "two"])["data"])
print("sglang", post("/generate", text="Once", sampling_params={"temperature": 0.6, "regex": "A.*"})["text"])
asked = {"text": "Once", "sampling_params": {"max_new_tokens": 9}, "stream": True}
with httpx.stream("POST", ROOT + "/generate", json=asked) as response:
    for line in response.iter_lines():
        print("sglang line", line)
