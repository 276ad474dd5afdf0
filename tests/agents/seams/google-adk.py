"""A session of Google ADK whose model is a class of the test's own."""

from secrets import token_hex

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import ToolContext
from google.genai import types

BODIES = []
PROBLEM = ValueError("no such row")


class Model(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text=str(last.function_response.response))
        else:
            part = types.Part(function_call=types.FunctionCall(id="call_1", name=last.text, args={"row": 1}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def draw(row: int, tool_context: ToolContext) -> str:
    """Draw a number, and keep it in the state."""
    BODIES.append("draw")
    tool_context.state["drawn"] = f"{row} {token_hex(8)}"
    return "drawn"


async def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


async def ask(name):
    agent = Agent(name="trader", model=Model(model="x"), tools=[draw, refuse])
    runner = InMemoryRunner(agent=agent, app_name="desk")
    session = await runner.session_service.create_session(app_name="desk", user_id="ada")
    message = types.Content(role="user", parts=[types.Part(text=name)])
    said = []
    async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=message):
        said += [part.text for part in event.content.parts]
    kept = await runner.session_service.get_session(app_name="desk", user_id="ada", session_id=session.id)
    await runner.close()
    return said, kept.state


async def use():
    return await ask("draw")


async def fail():
    return await ask("refuse")
