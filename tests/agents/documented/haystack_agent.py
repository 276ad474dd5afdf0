import os

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from shop import TASK, place_order

generator = OpenAIChatGenerator(model="gpt-x", api_base_url=os.environ["OPENAI_BASE_URL"])
agent = Agent(chat_generator=generator, tools=[create_tool_from_function(place_order)])
result = agent.run(messages=[ChatMessage.from_user(TASK)])
print(result["messages"][-1].text)
