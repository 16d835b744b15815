"""Run by the test in the environment of agentic-learning: what its README shows, and what came of it as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

NAME = "my_assistant"
# What the model of the sleeptime agent does when it reads this.
LEARN = (
    '[[call:memory_insert {"label": "human", "new_string": "Her name is Alice."}@1]] [[call:memory_finish_edits {}@2]]'
)


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def wait() -> None:
    """Until the test has seen that the sleeptime agent is done."""
    assert sys.stdin.readline()


def main() -> None:
    package: Any = import_module("agentic_learning")
    vendor = os.environ["VENDOR_URL"]
    openai: Any = import_module("openai").OpenAI(base_url=f"{vendor}/v1", api_key="not needed")
    claude: Any = import_module("anthropic").Anthropic(base_url=vendor, api_key="not needed")
    memory = package.AgenticLearning(base_url=os.environ["HOLDFAST_URL"])

    def ask(text: str, **options: Any) -> Any:
        return openai.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": text}], **options)

    with package.learning(agent=NAME, client=memory):
        tell(answer=ask(f"My name is Alice. {LEARN}").choices[0].message.content)
        wait()
        tell(memory=memory.memory.context.retrieve(NAME))
        streamed = ask("What is my name?", stream=True)
        tell(answer="".join(chunk.choices[0].delta.content or "" for chunk in streamed))
        asked = [{"role": "user", "content": "And mine, Claude?"}]
        tell(answer=claude.messages.create(model="claude-sonnet-4-5", max_tokens=99, messages=asked).content[0].text)
    with package.learning(agent=NAME, client=memory, capture_only=True):
        ask("Say nothing of it.")
    wait()
    tell(
        agents=[agent.name for agent in memory.agents.list()],
        sleeptime=memory.agents.sleeptime.retrieve(NAME).name,
        messages=[(each.message_type, each.content) for each in memory.messages.list(NAME, order="asc")],
        found=[message.message_type for message in memory.memory.search(NAME, "the name")],
    )
    memory.memory.create(NAME, "project", value="Tea.")
    tell(labels=sorted(block.label for block in memory.memory.list(NAME)), deleted=memory.agents.delete(NAME))


if __name__ == "__main__":
    main()
