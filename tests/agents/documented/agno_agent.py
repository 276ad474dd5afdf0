from agno.agent import Agent
from agno.models.openai import OpenAIChat
from shop import TASK, place_order

agent = Agent(model=OpenAIChat(id="gpt-x"), tools=[place_order], instructions="Place orders.")
agent.print_response(TASK)
