import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from shop import TASK, place_order


async def main():
    client = OpenAIChatCompletionClient(model="gpt-4o")
    agent = AssistantAgent("broker", model_client=client, tools=[place_order], reflect_on_tool_use=True)
    result = await agent.run(task=TASK)
    print(result.messages[-1].content)
    await client.close()


asyncio.run(main())
