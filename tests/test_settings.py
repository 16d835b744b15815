from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.usage import Price
from holdfast.errors import ConfigError
from holdfast.settings import PROVIDER_VARIABLES, DeclaredModel, Settings
from holdfast.variables import VARIABLES


def read(**environment: str) -> Settings:
    return Settings.from_environment(environment)


def test_an_empty_environment_is_enough_and_stays_on_this_machine() -> None:
    settings = read()
    assert (settings.host, settings.port, settings.api_key) == ("127.0.0.1", 8283, None)
    assert settings.data_dir.is_absolute()
    assert settings.default_model == "holdfast/offline"
    settings.require_safe_binding()


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("HOLDFAST_DATA_DIR", "/srv/h", "data_dir", Path("/srv/h")),
        ("HOLDFAST_PORT", "0", "port", 0),
        ("HOLDFAST_API_KEY", "k", "api_key", "k"),
        ("LETTA_SERVER_PASSWORD", "p", "api_key", "p"),
        ("LETTA_ENCRYPTION_KEY", "e", "encryption_key", "e"),
        ("LETTA_DEFAULT_LLM_HANDLE", "openai/gpt-4o", "default_model", "openai/gpt-4o"),
        ("LETTA_KEEPALIVE_INTERVAL", "5", "keepalive_s", 5.0),
        ("TOOL_SANDBOX_TIMEOUT", "7.5", "tool_timeout_s", 7.5),
        ("ACCEPTABLE_ORIGINS", "https://a, https://b", "acceptable_origins", ("https://a", "https://b")),
        ("HOLDFAST_ALLOW_PRIVATE_ADDRESSES", "true", "allow_private_addresses", True),
        ("HOLDFAST_ALLOW_PRIVATE_ADDRESSES", "false", "allow_private_addresses", False),
        ("HOLDFAST_ALLOWED_HOSTS", "Intra.example,10.0.0.0/8", "allowed_hosts", ("intra.example", "10.0.0.0/8")),
        ("HOLDFAST_LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("GLOBAL_MAX_CONTEXT_WINDOW_LIMIT", "64000", "max_context_window", 64_000),
        ("HOLDFAST_OPENAI_RESPONSES", "Never", "openai_responses", "never"),
        (
            "HOLDFAST_MODELS",
            "vllm/a/b=32768, lmstudio_openai/c,vllm/v=embedding:768",
            "models",
            (
                DeclaredModel("vllm/a/b", 32_768),
                DeclaredModel("lmstudio_openai/c"),
                DeclaredModel("vllm/v", embedding_dim=768),
            ),
        ),
        (
            "HOLDFAST_MODEL_PRICES",
            "openai/gpt-4o=2.5/10/1.25, vllm/a/b=0/0,anthropic/c=3/15/0.3/3.75",
            "model_prices",
            {
                "openai/gpt-4o": Price(2.5, 10, 1.25),
                "vllm/a/b": Price(0, 0),
                "anthropic/c": Price(3, 15, 0.3, 3.75),
            },
        ),
        ("LETTA_TRACK_PROVIDER_TRACE", "true", "trace_provider", True),
        ("HOLDFAST_TRACE_MAX_BYTES", "4096", "trace_max_bytes", 4096),
        ("HOLDFAST_TRACE_RETENTION_S", "3600", "trace_retention_s", 3600.0),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318", "otlp_endpoint", "http://collector:4318"),
    ],
)
def test_a_variable_sets_its_field(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(read(**{name: value}), field) == expected


def test_our_name_wins_over_the_old_one_and_empty_means_unset() -> None:
    assert read(HOLDFAST_API_KEY="new", LETTA_SERVER_PASSWORD="old").api_key == "new"
    assert read(HOLDFAST_API_KEY="", LETTA_SERVER_PASSWORD="old").api_key == "old"
    assert read(HOLDFAST_API_KEY=" ").api_key is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_PORT", "99999"),
        ("HOLDFAST_TRACE_MAX_BYTES", "10"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("HOLDFAST_PORT", "http"),
        ("HOLDFAST_MAX_BODY_BYTES", "-1"),
        ("HOLDFAST_KEEPALIVE_S", "soon"),
        ("HOLDFAST_QUEUE_WAIT_S", "nan"),
        ("HOLDFAST_ALLOWED_HOSTS", "http://intra"),
        ("HOLDFAST_ALLOWED_HOSTS", "10.0.0.0/99"),
        ("HOLDFAST_DEFAULT_MODEL", "gpt-4o"),
        ("HOLDFAST_LOG_LEVEL", "loud"),
        ("HOLDFAST_TRACE_PROVIDER", "maybe"),
        ("HOLDFAST_OPENAI_RESPONSES", "sometimes"),
        ("HOLDFAST_MODELS", "just-a-name"),
        ("HOLDFAST_MODELS", "vllm/a=wide"),
        ("HOLDFAST_MODELS", "vllm/a=0"),
        ("HOLDFAST_MODEL_PRICES", "gpt-4o=2.5/10"),
        ("HOLDFAST_MODEL_PRICES", "openai/gpt-4o=2.5"),
        ("HOLDFAST_MODEL_PRICES", "openai/gpt-4o=-1/10"),
        ("HOLDFAST_MODEL_PRICES", "openai/gpt-4o=nan/10"),
        ("HOLDFAST_MODEL_PRICES", "openai/gpt-4o=cheap/10"),
        ("HOLDFAST_MAX_CONTEXT_WINDOW", "10"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence_that_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**{name: value})
    assert str(caught.value).startswith(name)
    assert str(caught.value).endswith(".")
    assert value in str(caught.value)


def test_a_wrong_database_url_is_not_repeated_because_it_may_hold_a_password() -> None:
    with pytest.raises(ConfigError, match="HOLDFAST_DATABASE_URL") as caught:
        read(HOLDFAST_DATABASE_URL="mysql://me:hunter2@db/x")
    assert "hunter2" not in str(caught.value)


def test_settings_do_not_show_their_keys() -> None:
    shown = repr(read(HOLDFAST_API_KEY="hunter2", OPENAI_API_KEY="hunter2", HOLDFAST_ENCRYPTION_KEY="hunter2"))
    assert "hunter2" not in shown


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_listening_elsewhere_needs_a_key_and_the_refusal_says_how_to_set_one(host: str) -> None:
    with pytest.raises(ConfigError, match="HOLDFAST_API_KEY"):
        read(HOLDFAST_HOST=host).require_safe_binding()
    read(HOLDFAST_HOST=host, HOLDFAST_API_KEY="k").require_safe_binding()
    read(HOLDFAST_HOST=host, LETTA_SERVER_PASSWORD="k").require_safe_binding()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_listening_on_this_machine_needs_none(host: str) -> None:
    settings = read(HOLDFAST_HOST=host)
    settings.require_safe_binding()
    assert settings.api_key is None


def test_provider_variables_are_kept_as_they_are_and_nothing_else_is() -> None:
    settings = read(OPENAI_API_KEY="k", ANTHROPIC_BASE_URL="http://x", PATH="/bin", GROQ_API_KEY="")
    assert settings.providers == {"OPENAI_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://x"}


def test_a_key_that_was_read_from_a_file_may_end_with_a_line() -> None:
    assert read(OPENAI_API_KEY=" k\n", GROQ_API_KEY="\n").providers == {"OPENAI_API_KEY": "k"}


def test_with_a_provider_there_is_no_default_model_unless_one_is_named() -> None:
    assert read(OPENAI_API_KEY="k").default_model is None
    assert read(ANTHROPIC_BASE_URL="http://x").default_model == "holdfast/offline"
    assert read(GOOGLE_CLOUD_PROJECT="p").default_model == "holdfast/offline"  # Google sets it on its own machines
    assert read(OPENAI_API_KEY="k", HOLDFAST_DEFAULT_MODEL="openai/o").default_model == "openai/o"


def test_the_old_name_for_how_often_a_call_is_tried_again_is_honoured() -> None:
    assert read(ANTHROPIC_MAX_RETRIES="1").model_retries == 1
    assert read(ANTHROPIC_MAX_RETRIES="1", HOLDFAST_MODEL_RETRIES="2").model_retries == 2


def test_the_database_is_a_file_in_the_data_directory_unless_named() -> None:
    assert read(HOLDFAST_DATA_DIR="/srv/a b").database_address == "sqlite:////srv/a%20b/holdfast.db"
    assert read(HOLDFAST_DATABASE_URL="postgresql://db/x").database_address == "postgresql://db/x"


def test_a_data_directory_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="HOLDFAST_DATA_DIR"):
        read(HOLDFAST_DATA_DIR=str(tmp_path / "file" / "below")).make_data_dir()


def test_every_variable_is_described_and_no_name_is_used_twice() -> None:
    names = [name for variable in VARIABLES for name in variable.names]
    assert len(names) == len(set(names))
    assert not PROVIDER_VARIABLES & set(names)
    assert all(variable.meaning.endswith(".") for variable in VARIABLES)
    assert {variable.field for variable in VARIABLES} == set(Settings.__struct_fields__) - {"providers"}


@pytest.mark.parametrize(
    ("environment", "guards"),
    [
        ({}, False),
        ({"HOLDFAST_API_KEY": "k"}, True),
        ({"HOLDFAST_HOST": "0.0.0.0"}, True),
        ({"HOLDFAST_HOST": "::1"}, False),
        ({"HOLDFAST_HOST": "0.0.0.0", "HOLDFAST_API_KEY": "k", "HOLDFAST_ALLOW_PRIVATE_ADDRESSES": "true"}, False),
        ({"HOLDFAST_ALLOW_PRIVATE_ADDRESSES": "false"}, True),
    ],
)
def test_providers_of_callers_that_are_not_trusted_are_guarded(environment: dict[str, str], guards: bool) -> None:
    assert Settings.from_environment(environment).guards_providers is guards
