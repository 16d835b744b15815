"""The environment's variables become endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.llm.catalog.environment import endpoints, vertex_endpoint
from holdfast.llm.endpoint import OFFICIAL, Endpoint, base_url
from holdfast.settings import ENABLING_VARIABLES, PROVIDER_VARIABLES

EVERYTHING = {
    "OPENAI_API_KEY": "k",
    "ANTHROPIC_API_KEY": "k",
    "GEMINI_API_KEY": "k",
    "GOOGLE_CLOUD_PROJECT": "p",
    "GOOGLE_CLOUD_LOCATION": "europe-west4",
    "OLLAMA_BASE_URL": "http://localhost:11434",
    "VLLM_API_BASE": "http://localhost:8000",
    "SGLANG_API_BASE": "http://localhost:30000",
    "LMSTUDIO_BASE_URL": "http://localhost:1234",
    "AZURE_API_KEY": "k",
    "AZURE_BASE_URL": "https://mine.openai.azure.com",
    "AWS_ACCESS_KEY_ID": "i",
    "AWS_SECRET_ACCESS_KEY": "s",
    "MISTRAL_API_KEY": "k",
    "COHERE_API_KEY": "k",
    "OPENROUTER_API_KEY": "k",
    "GROQ_API_KEY": "k",
    "TOGETHER_API_KEY": "k",
    "DEEPSEEK_API_KEY": "k",
    "XAI_API_KEY": "k",
    "ZAI_API_KEY": "k",
    "MINIMAX_API_KEY": "k",
    "BASETEN_API_KEY": "k",
    "FIREWORKS_API_KEY": "k",
}


def only(**variables: str) -> Endpoint:
    (found,) = endpoints(variables)
    return found


def test_an_empty_environment_enables_nobody() -> None:
    assert endpoints({}) == []


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_an_address_of_openai_without_a_key_is_not_passed_over_in_silence(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert endpoints({name: "http://localhost:8000"}) == []
    (told,) = caplog.messages
    assert told.startswith(f"{name} is set, but OPENAI_API_KEY is not")


class Noting(dict[str, str]):
    """Remembers what it was asked for."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables)
        self.asked = set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def test_no_variable_is_looked_for_that_settings_would_not_pass_on() -> None:
    variables = Noting(EVERYTHING)
    assert endpoints(variables)
    assert "DEEPSEEK_BASE_URL" in variables.asked
    assert variables.asked <= PROVIDER_VARIABLES


def test_every_enabling_variable_enables_a_provider_in_a_fixed_order() -> None:
    assert EVERYTHING.keys() >= ENABLING_VARIABLES
    assert EVERYTHING.keys() <= PROVIDER_VARIABLES
    found = endpoints(dict(reversed(EVERYTHING.items())))
    assert [one.provider_name for one in found] == [
        "openai",
        "anthropic",
        "google_ai",
        "google_vertex",
        "azure",
        "bedrock",
        "ollama",
        "vllm",
        "sglang",
        "lmstudio_openai",
        "mistral",
        "cohere",
        "openrouter",
        "groq",
        "together",
        "deepseek",
        "xai",
        "zai",
        "minimax",
        "baseten",
        "fireworks",
    ]
    assert {one.category for one in found} == {"base"}
    for one in found:
        assert one.base_url.startswith("http")
        assert not one.base_url.endswith("/")
        if one.provider_type in OFFICIAL:
            assert one.base_url == OFFICIAL[one.provider_type]


def test_another_address_for_openai_gives_its_handles_another_prefix() -> None:
    assert only(OPENAI_API_KEY="k").provider_name == "openai"
    assert only(OPENAI_API_KEY="k", OPENAI_BASE_URL="https://api.openai.com/v1/").provider_name == "openai"
    proxy = only(OPENAI_API_KEY="k", OPENAI_BASE_URL="http://localhost:9")
    assert (proxy.provider_name, proxy.provider_type, proxy.base_url) == (
        "openai-proxy",
        "openai",
        "http://localhost:9/v1",
    )


def test_the_newer_name_of_the_openai_address_wins() -> None:
    assert only(OPENAI_API_KEY="k", OPENAI_API_BASE="http://old").base_url == "http://old/v1"
    both = only(OPENAI_API_KEY="k", OPENAI_API_BASE="http://old", OPENAI_BASE_URL="http://new")
    assert both.base_url == "http://new/v1"


@pytest.mark.parametrize(
    ("provider_type", "written", "expected"),
    [
        ("ollama", "http://localhost:11434", "http://localhost:11434/v1"),
        ("ollama", "http://localhost:11434/", "http://localhost:11434/v1"),
        ("ollama", "http://localhost:11434/v1", "http://localhost:11434/v1"),
        ("ollama", "http://localhost:11434/v1/", "http://localhost:11434/v1"),
        ("ollama", "https://box.example/ollama", "https://box.example/ollama/v1"),
        ("vllm", "http://gpu:8000/v1/chat/completions", "http://gpu:8000/v1"),
        ("openai", "https://gateway.example/openai", "https://gateway.example/openai"),
        ("openai", "https://gateway.example/api/v3/", "https://gateway.example/api/v3"),
        ("zai", "https://api.z.ai/api/paas/v4/", "https://api.z.ai/api/paas/v4"),
        ("anthropic", "https://proxy.example/v1/", "https://proxy.example"),
        ("anthropic", "https://proxy.example/claude", "https://proxy.example/claude"),
        ("google_ai", "https://generativelanguage.googleapis.com/v1beta/", "https://generativelanguage.googleapis.com"),
        ("azure", "https://mine.openai.azure.com/", "https://mine.openai.azure.com"),
        ("azure", "https://mine.openai.azure.com/openai", "https://mine.openai.azure.com"),
        ("azure", "https://mine.openai.azure.com/openai/v1/", "https://mine.openai.azure.com/openai/v1"),
    ],
)
def test_addresses_may_be_written_with_or_without_version_and_slash(
    provider_type: str, written: str, expected: str
) -> None:
    assert base_url(provider_type, written) == expected
    assert base_url(provider_type, expected) == expected


@pytest.mark.parametrize("url", ["localhost:11434", "ftp://x", "http://", "http://me:secret@host", "http://[::1"])
def test_an_address_that_is_none_is_refused_by_the_name_of_its_variable(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^OLLAMA_BASE_URL .*\.$"):
        endpoints({"OLLAMA_BASE_URL": url})


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        endpoints({"OLLAMA_BASE_URL": "http://me:hunter2@host"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("AZURE_API_KEY", "AZURE_BASE_URL"),
        ("AZURE_BASE_URL", "AZURE_API_KEY"),
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        ("GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_PROJECT"),
    ],
)
def test_half_a_provider_is_refused_and_told_what_is_missing(given: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{given} is set, but {missing} is not"):
        endpoints({given: "https://x"})


def test_a_project_of_google_cloud_alone_is_no_provider() -> None:
    assert endpoints({"GOOGLE_CLOUD_PROJECT": "p"}) == []


def test_a_value_that_no_header_can_carry_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"^OPENAI_API_KEY .*\.$") as caught:
        endpoints({"OPENAI_API_KEY": "hunter\n2"})
    assert "hunter" not in str(caught.value)


def test_handles_of_ones_own_servers_may_have_another_prefix() -> None:
    assert only(VLLM_API_BASE="http://gpu", VLLM_HANDLE_BASE="lab").provider_name == "lab"
    assert only(SGLANG_API_BASE="http://gpu", SGLANG_HANDLE_BASE="lab/").provider_name == "lab"
    assert only(OPENROUTER_API_KEY="k", OPENROUTER_HANDLE_BASE="router").provider_name == "router"
    with pytest.raises(ConfigError, match="VLLM_HANDLE_BASE"):
        endpoints({"VLLM_API_BASE": "http://gpu", "VLLM_HANDLE_BASE": "a/b"})


@pytest.mark.parametrize("name", ["openai", "sglang", "holdfast"])
def test_no_two_providers_share_a_name(name: str) -> None:
    everybody = {"OPENAI_API_KEY": "k", "SGLANG_API_BASE": "http://gpu", "VLLM_API_BASE": "http://gpu"}
    with pytest.raises(ConfigError, match=f"called {name}: .*VLLM_HANDLE_BASE"):
        endpoints({**everybody, "VLLM_HANDLE_BASE": name})


def test_what_is_peculiar_to_a_vendor_goes_along() -> None:
    azure = only(AZURE_API_KEY="k", AZURE_BASE_URL="https://a", AZURE_API_VERSION="2025-01-01")
    assert azure.options == {"api_version": "2025-01-01"}
    aws = only(AWS_ACCESS_KEY_ID="i", AWS_SECRET_ACCESS_KEY="s", AWS_SESSION_TOKEN="t", AWS_DEFAULT_REGION="eu-west-1")
    assert aws.options == {"region": "eu-west-1", "access_key": "i", "session_token": "t"}
    assert (aws.api_key, aws.base_url) == ("s", "https://bedrock-runtime.eu-west-1.amazonaws.com")
    private = {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "https://vpce-1.example/"}
    aws = only(AWS_ACCESS_KEY_ID="i", AWS_SECRET_ACCESS_KEY="s", **private)
    assert aws.base_url == "https://vpce-1.example"
    vertex = only(GOOGLE_CLOUD_PROJECT="p", GOOGLE_CLOUD_LOCATION="europe-west4")
    assert vertex.options == {"project": "p", "location": "europe-west4"}
    assert vertex.base_url == "https://europe-west4-aiplatform.googleapis.com"
    router = only(OPENROUTER_API_KEY="k", OPENROUTER_REFERER="https://me", OPENROUTER_TITLE="Mine")
    assert router.headers == {"http-referer": "https://me", "x-title": "Mine"}
    assert only(ANTHROPIC_API_KEY="k", ANTHROPIC_SONNET_1M="true", ANTHROPIC_OPUS_1M="false").options == {
        "context_1m": "sonnet"
    }


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("global", "https://aiplatform.googleapis.com"),
        ("us", "https://aiplatform.us.rep.googleapis.com"),
        ("eu", "https://aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_what_is_more_than_a_region_of_google_has_an_address_of_its_own(location: str, address: str) -> None:
    assert only(GOOGLE_CLOUD_PROJECT="p", GOOGLE_CLOUD_LOCATION=location).base_url == address


def test_a_key_of_google_cloud_belongs_to_no_region() -> None:
    assert vertex_endpoint("mine", None, api_key="k").base_url == "https://aiplatform.googleapis.com"
    assert vertex_endpoint("mine", "us-east5", api_key="k").base_url == "https://us-east5-aiplatform.googleapis.com"


def test_an_endpoint_does_not_show_its_key() -> None:
    assert "hunter2" not in repr(only(OPENAI_API_KEY="hunter2"))
