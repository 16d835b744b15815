"""Run by the test in the environment of ai-memory-sdk: what its README shows, with what came of it printed as JSON."""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Any

WORDS = "I like tea [[no_reasoning]] "
LEARN = '[[call:memory_insert {"label": "human", "new_string": "Likes tea."}@1]] [[call:memory_finish_edits {}@2]]'


def main() -> None:
    client: Any = import_module("letta_client")
    sdk: Any = import_module("ai_memory_sdk")
    memory = sdk.Memory(api_key="not needed")
    # It has no setting for the address of a server.
    memory.letta_client = client.Letta(base_url=os.environ["HOLDFAST_URL"], token="not needed")
    agent_id = memory.initialize_user_memory("ada", user_context_block_value="Ada.")
    run_id = memory.add_messages("ada", [{"role": "user", "content": WORDS + LEARN}], skip_vector_storage=False)
    memory.wait_for_run(run_id, timeout=60)
    subject = sdk.Memory(api_key="not needed", subject_id="project")
    subject.letta_client = memory.letta_client
    subject.initialize_memory("policies", "What holds", value="Be kind.")
    print(
        json.dumps(
            {
                "agent_id": agent_id,
                "found_id": memory.get_memory_agent_id("ada"),
                "run_id": run_id,
                "human": memory.get_user_memory("ada"),
                "prompt": memory.get_user_memory("ada", prompt_formatted=True),
                "summary": memory.get_summary("ada"),
                "found": memory.search("ada", "tea"),
                "policies": subject.get_memory("policies"),
                "labels": sorted(block.label for block in subject.list_blocks()),
            }
        )
    )
    subject.delete_block("policies")
    memory.delete_user("project")


if __name__ == "__main__":
    main()
