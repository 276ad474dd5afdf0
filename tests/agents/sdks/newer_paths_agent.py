"""Asks models on paths that a provider added later: counts, compaction, interactions, embeddings behind an ARN."""

import json

import anthropic
import boto3
import openai
from google import genai

PROFILE = "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/a1b2c3"
said = [{"role": "user", "content": "hello"}]

client = openai.OpenAI()
print("count", client.responses.input_tokens.count(model="gpt-x", input="hello").input_tokens)
compacted = client.responses.compact(model="gpt-x", input=said)
print("compact", compacted.object, [item.type for item in compacted.output], compacted.output[-1].encrypted_content)
counted = anthropic.Anthropic().messages.count_tokens(model="claude-x", messages=said)
print("count", counted.input_tokens)

google = genai.Client()
whole = google.interactions.create(model="gemini-x", input="hello")
print("interaction", whole.status, whole.output_text)
for event in google.interactions.create(model="gemini-x", input="hello again", stream=True):
    print("event", event.event_type)

bedrock = boto3.client("bedrock-runtime")


def invoke(model, **body):
    answer = bedrock.invoke_model(modelId=model, body=json.dumps(body))
    return json.loads(answer["body"].read())


print(
    "nova",
    invoke(
        "amazon.nova-2-multimodal-embeddings-v1:0",
        taskType="SINGLE_EMBEDDING",
        singleEmbeddingParams={"embeddingPurpose": "GENERIC_INDEX", "text": {"value": "a"}},
    ),
)
print("profile", invoke(PROFILE, inputText="a"))
print("command", invoke("cohere.command-text-v14", prompt="hello"))
