"""Talks to Amazon Bedrock: Converse and InvokeModel with the bodies of several vendors, whole and streamed."""

import json
import os

import boto3
from anthropic import AnthropicBedrock
from botocore.config import Config
from botocore.exceptions import EventStreamError, HTTPClientError
from urllib3.exceptions import ProtocolError

client = boto3.client("bedrock-runtime", config=Config(retries={"total_max_attempts": 1}))
PAY = {"toolSpec": {"name": "pay", "inputSchema": {"json": {"type": "object", "properties": {}}}}}


def said(prompt):
    return [{"role": "user", "content": [{"text": prompt}]}]


def invoke(model, **body):
    body = json.dumps(body)
    print(model, client.invoke_model(modelId=model, body=body)["body"].read().decode())
    for event in client.invoke_model_with_response_stream(modelId=model, body=body)["body"]:
        print(model, "chunk", event)


nova = "us.amazon.nova-x-v1:0"
answer = client.converse(
    modelId=nova,
    messages=said("hello"),
    system=[{"text": "You are terse."}],
    inferenceConfig={"temperature": 0.7, "maxTokens": 50},
)
print("converse", answer["output"], answer["usage"], answer["ResponseMetadata"]["HTTPHeaders"]["x-request-id"])
pay = 'use tool pay with {"amount": 190000}'
print("tool", client.converse(modelId=nova, messages=said(pay), toolConfig={"tools": [PAY]})["output"])
for prompt in ("stream", pay):
    stream = client.converse_stream(modelId=nova, messages=said(prompt), toolConfig={"tools": [PAY]})
    for event in stream["stream"]:
        print("converse chunk", event)
left = client.converse_stream(modelId=nova, messages=said("left early"))["stream"]
print("left", next(iter(left)))
left.close()
try:
    for event in client.converse_stream(modelId=nova, messages=said("throttled mid-stream"))["stream"]:
        print("throttled", event)
except EventStreamError as exc:
    print("throttled", exc.response)
try:
    for event in client.converse_stream(modelId=nova, messages=said("drop connection mid-stream"))["stream"]:
        print("dropped", event)
except (HTTPClientError, ProtocolError) as exc:
    print("dropped", type(exc).__name__)
try:
    client.converse(modelId=nova, messages=said("fail 400 always"))
except client.exceptions.ClientError as exc:
    print("error", exc.response["Error"])
claude = [{"role": "user", "content": "claude"}]
invoke(
    "anthropic.claude-x",
    anthropic_version="bedrock-2023-05-31",
    max_tokens=50,
    messages=claude,
)
invoke("meta.llama-x", prompt="llama", max_gen_len=50, temperature=0.2)
invoke("amazon.titan-text-x", inputText="titan", textGenerationConfig={"temperature": 0.2})
invoke("amazon.nova-x", messages=said("nova"), inferenceConfig={"temperature": 0.2})
vector = client.invoke_model(modelId="amazon.titan-embed-x", body=json.dumps({"inputText": "a", "dimensions": 8}))
with AnthropicBedrock(base_url=os.environ["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"], max_retries=0) as anthropic:
    asked = {"model": "anthropic.claude-x", "max_tokens": 50, "messages": claude}
    print("anthropic", anthropic.messages.create(**asked).content[0].text)
    with anthropic.messages.stream(**asked) as stream:
        for text in stream.text_stream:
            print("anthropic chunk", text)
print("embedding", vector["body"].read().decode())
