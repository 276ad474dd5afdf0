from pydantic_ai import Agent
from shop import TASK, place_order

agent = Agent("openai:gpt-x", instructions="Place orders.", tools=[place_order])
result = agent.run_sync(TASK)
print(result.output)
