"""letta-evals from PyPI: a suite whose target is an agent file, graded by a function and by an agent that judges."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.vendors import VendorProcess
from tests.serving import ServerProcess
from tests.surroundings import calm

LIMIT_S = 120
# Of the agent file of the judge, which comes with the program.
MODELS = "openai/gpt-4o-mini=128000,openai/text-embedding-3-small=embedding:1536"
# The program asks the network for it, unless it has it.
PRICES = {"offline": {"input_cost_per_token": 0.5, "output_cost_per_token": 1.0}}
CAPITAL = '''
def capital(country: str) -> str:
    """Tell the capital of a country.

    Args:
        country (str): Its name.
    """
    return {"France": "Paris"}[country]
'''
GRADE = '[[call:submit_grade {"score": 0.75, "rationale": "Nearly."}]]'
SAMPLES = (
    {
        "input": 'What is the capital of France? [[call:capital {"country": "France"}]] [[no_reasoning]]',
        "ground_truth": "Paris",
        "rubric_vars": {"grade": GRADE},
    },
    {
        "input": ["Hello [[say:Hello.]]", "Calculate 2+2 [[say:5]]"],
        "ground_truth": "4",
        "rubric_vars": {"grade": GRADE},
    },
)
SUITE = """\
name: geography
dataset: dataset.jsonl
target:
  kind: letta_agent
  agent_file: geographer.af
  base_url: {url}
graders:
  right:
    kind: tool
    function: contains
    extractor: last_assistant
  looked_up:
    kind: tool
    function: contains
    extractor: tool_output
    extractor_config: {{tool_name: capital}}
  judged:
    kind: letta_judge
    prompt: "How good is it? {{grade}}"
    extractor: last_assistant
gate:
  kind: simple
  metric_key: right
  aggregation: avg_score
  op: gte
  value: 0.75
"""


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    """Beside the fake of OpenAI, which has the offline model for a brain."""
    with (
        VendorProcess("chat") as vendor,
        ServerProcess(
            tmp_path / "data",
            OPENAI_BASE_URL=f"{vendor.url}/v1",
            OPENAI_API_KEY="sk-offline",
            HOLDFAST_MODELS=MODELS,
        ) as server,
    ):
        yield server


@pytest.fixture
def suite(tmp_path: Path, server: ServerProcess) -> Path:
    """In a directory with its dataset and the file of an agent that is not on the server any more."""
    directory = tmp_path / "suite"
    directory.mkdir()
    (directory / "model_prices.json").write_text(json.dumps(PRICES))
    (directory / "dataset.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for sample in SAMPLES))
    (directory / "suite.yaml").write_text(SUITE.format(url=server.url))
    with server.client() as client:
        tool = client.tools.upsert(source_code=CAPITAL)
        agent = client.agents.create(model="holdfast/offline", include_base_tools=False, tool_ids=[tool.id])
        (directory / "geographer.af").write_text(client.agents.export_file(agent.id))
        client.agents.delete(agent.id)
        client.tools.delete(tool.id)
    return directory


def run(programs: Path, suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(programs / "letta-evals/bin/letta-evals"), *arguments],
        cwd=suite,
        env=calm(os.environ) | {"LETTA_EVALS_CACHE_DIR": str(suite), "LETTA_API_KEY": "not needed"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_an_agent_file_is_run_on_a_dataset_and_its_answers_get_their_scores(
    programs: Path, server: ServerProcess, suite: Path
) -> None:
    assert run(programs, suite, "validate", "suite.yaml").returncode == 0
    done = run(programs, suite, "run", "suite.yaml", "--output", "results")
    assert done.returncode == 1, done.stderr  # the gate: half of the answers are right, three quarters should be
    summary: Any = json.loads((suite / "results/summary.json").read_text())
    [scores] = summary["models"]
    assert (summary["gates_passed"], scores["n_total"], scores["n_attempted"]) == (False, 2, 2)
    assert scores["per_metric"] == {"right": 0.5, "looked_up": 0.5, "judged": 0.75}
    assert scores["usage"]["prompt_tokens"] > 0
    lines = [json.loads(line) for line in (suite / "results/default.jsonl").read_text().splitlines()]
    first, second = sorted(lines, key=lambda line: line["sample_id"])
    kinds = [[message["message_type"] for message in turn] for turn in (*first["trajectory"], *second["trajectory"])]
    assert kinds[0] == ["user_message", "tool_call_message", "tool_return_message", "assistant_message"]
    assert [turn[-1] for turn in kinds[1:]] == ["assistant_message"] * 2
    with server.client() as client:
        assert {run.status for run in client.runs.list(limit=100)} == {"completed"}
