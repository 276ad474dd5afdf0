import os

from shop import TASK, place_order
from strands import Agent, tool
from strands.models.openai import OpenAIModel

client = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
agent = Agent(model=OpenAIModel(client_args=client, model_id="gpt-x"), tools=[tool(place_order)])
print(agent(TASK))
