from deepagents import create_deep_agent
from shop import TASK, place_order

agent = create_deep_agent(model="openai:gpt-x", tools=[place_order], system_prompt="Place orders.")
result = agent.invoke({"messages": [{"role": "user", "content": TASK}]})
print(result["messages"][-1].content)
