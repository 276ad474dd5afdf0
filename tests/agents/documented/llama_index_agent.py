import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI
from shop import TASK, place_order

llm = OpenAI(model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])
agent = FunctionAgent(tools=[place_order], llm=llm, system_prompt="Place orders.")


async def main():
    print(await agent.run(TASK))


asyncio.run(main())
