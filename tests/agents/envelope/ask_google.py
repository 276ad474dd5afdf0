"""Five questions with Google's SDK; prints what the program got."""

import json

from google import genai
from google.genai import types
from google.genai.errors import ClientError

client = genai.Client()
PAY = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="pay",
            description="Pay an amount",
            parameters=types.Schema(
                type="OBJECT", properties={"amount": types.Schema(type="INTEGER")}, required=["amount"]
            ),
        )
    ]
)


def ask(prompt, call=client.models.generate_content, **more):
    config = types.GenerateContentConfig(system_instruction="You are terse.", **more)
    return call(model="gemini-x", contents=prompt, config=config)


def show(answer):
    parts = answer.candidates[0].content.parts
    calls = [[part.function_call.name, json.dumps(part.function_call.args)] for part in parts if part.function_call]
    print(json.dumps({"text": "".join(part.text or "" for part in parts), "calls": calls}))


show(ask("Hello.", temperature=0.7, top_p=0.9, max_output_tokens=50, seed=7))
show(ask("Hello again."))
chunks = ask("Stream.", call=client.models.generate_content_stream, temperature=0)
print(json.dumps({"text": "".join(chunk.text for chunk in chunks), "calls": []}))
show(ask('use tool pay with {"amount": 190000}', temperature=1.3, tools=[PAY]))
try:
    ask("fail 400 always", temperature=0.2)
except ClientError as exc:
    print(json.dumps({"error": exc.code}))
