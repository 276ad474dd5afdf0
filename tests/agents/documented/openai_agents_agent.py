from shop import TASK, place_order

from agents import Agent, Runner, function_tool

agent = Agent(name="Broker", instructions="Place orders.", model="gpt-x", tools=[function_tool(place_order)])
result = Runner.run_sync(agent, TASK)
print(result.final_output)
