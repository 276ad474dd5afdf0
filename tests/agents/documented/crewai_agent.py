import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from shop import TASK, place_order

llm = LLM(model="openai/gpt-x", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
broker = Agent(
    role="Broker", goal="Place orders", backstory="Years at the exchange.", llm=llm, tools=[tool(place_order)]
)
task = Task(description=TASK, expected_output="a receipt", agent=broker)
print(Crew(agents=[broker], tasks=[task]).kickoff())
