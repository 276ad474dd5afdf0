"""A function tool of openai-agents, called by an agent of which the model is a script."""

from dataclasses import dataclass, field
from secrets import token_hex

from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from agents import Agent, ModelResponse, RunConfig, RunContextWrapper, Runner, Usage, function_tool

BODIES = []
CALLS = 2
PROBLEM = ValueError("no such row")


@dataclass
class Seats:
    taken: list = field(default_factory=list)


@function_tool
async def draw(row: int) -> str:
    """Draw a number."""
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


@function_tool
def take(seats: RunContextWrapper[Seats], row: int) -> str:
    """Take a seat."""
    BODIES.append("take")
    seats.context.taken.append(f"{row} {token_hex(8)}")
    return "taken"


@function_tool(failure_error_function=None)
def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


class Script(Model):
    def __init__(self, *names):
        self.names = list(names)

    async def get_response(self, *args, **kwargs):
        if self.names:
            output = [
                ResponseFunctionToolCall(
                    type="function_call", call_id=f"call_{n}", name=name, arguments='{"row": 1}', id=f"fc_{n}"
                )
                for n, name in enumerate(self.names)
            ]
            self.names = []
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def ask(seats, *names):
    agent = Agent(name="clerk", model=Script(*names), tools=[draw, take, refuse])
    result = await Runner.run(agent, "go", context=seats, run_config=RunConfig(tracing_disabled=True))
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


async def use():
    seats = Seats()
    return await ask(seats, "draw", "take"), seats.taken


async def fail():
    return await ask(None, "refuse")
