"""A model on your own machine, with a memory and a tool: any server that speaks OpenAI's protocol will do.

    ollama serve & ollama pull llama3.2          or vLLM, llama.cpp's llama-server, LM Studio, …
    pip install '.[openai]'                      in the checkout
    python examples/local_model.py "What is the weather in Porto?"
    python examples/local_model.py --url http://127.0.0.1:8000/v1 --model my-model "…"

Nothing leaves the machine: the model, the embeddings and the memory are all on it, and no key is needed.
"""

from __future__ import annotations

import argparse
import asyncio

from recollect import AgentMemory, AgentWithMemory


async def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"{city}: 18 °C, light rain"


async def main(store: str, url: str, model: str, task: str) -> None:
    async with (
        AgentMemory.open(store, user="you") as memory,
        AgentWithMemory(memory, tools=[weather], model=f"openai:{model}@{url}") as agent,
    ):
        await memory.remember("Temperatures are given in degrees Fahrenheit, too.", key="units")
        answer = await agent.run(task)
        for step in agent.last_run.steps if agent.last_run else ():
            for used in step.tools:
                print(f"[{used.name}({', '.join(map(str, used.arguments.values()))}) → {used.result}]")
        print(answer)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("task")
    arguments.add_argument("--store", default="local.db")
    arguments.add_argument(
        "--url", default="http://127.0.0.1:11434/v1", help="where the server is; Ollama's by default"
    )
    arguments.add_argument("--model", default="llama3.2")
    given = arguments.parse_args()
    asyncio.run(main(given.store, given.url, given.model, given.task))
