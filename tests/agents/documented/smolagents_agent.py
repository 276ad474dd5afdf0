import os

from shop import TASK, place_order
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel("gpt-x", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[tool(place_order)], model=model)
print(agent.run(TASK.replace('say {"text": "bought"}', 'use tool final_answer with {"answer": "bought"}')))
