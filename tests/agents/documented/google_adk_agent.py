import asyncio

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from shop import TASK, place_order

agent = Agent(name="broker", model=LiteLlm(model="openai/gpt-x"), instruction="Place orders.", tools=[place_order])


async def main():
    runner = InMemoryRunner(agent=agent, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=TASK)])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response():
            print(event.content.parts[0].text)


asyncio.run(main())
