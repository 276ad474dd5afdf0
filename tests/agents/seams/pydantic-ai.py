"""Tools of a pydantic-ai agent whose model is a function."""

from secrets import token_hex

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

BODIES = []
PROBLEM = ValueError("no such row")


def ask(name):
    def answer(messages, info):
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart(name, {"row": 1}, tool_call_id="call_1")])
        return ModelResponse(parts=[TextPart(str([p.content for p in messages[-1].parts]))])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def draw(row: int) -> str:
        """Draw a number."""
        BODIES.append("draw")
        return f"{row} {token_hex(8)}"

    @agent.tool_plain
    async def refuse(row: int) -> str:
        """Refuse."""
        BODIES.append("refuse")
        raise PROBLEM

    return agent.run_sync("go").output


def use():
    return ask("draw")


def fail():
    return ask("refuse")
