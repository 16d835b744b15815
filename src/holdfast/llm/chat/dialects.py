"""How the vendors of the chat completions API differ. What one of them refuses is not sent to it.

A server that nobody knows gets the fewest words: the protocol of 2024, which all of them took over.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from holdfast.llm.base import ModelInfo


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    parallel_tool_calls: bool = False  # may be said; where not, the engine keeps the first of several calls
    strict: bool = False  # tools may have strict schemas
    asks_for_usage: bool = True  # by stream_options
    user: bool = False
    effort: Literal["reasoning_effort", "reasoning"] | None = None  # where the reasoning effort goes
    verbosity: bool = False
    thinking: bool = False  # takes the switch `thinking: {type: …}`
    # How JSON is asked for: by its schema, as any object, or by the system prompt alone. Without a schema the prompt
    # describes it.
    json: Literal["schema", "object", "prompt"] = "schema"
    forced_choice: bool = True  # a tool can be demanded
    named_choice: bool = True  # by its name, too; the only tool that is offered can be demanded without
    none_choice: bool = True  # it can be offered tools and told to call none of them; else it is offered none
    thinks_or_obeys: bool = False  # a demand is refused while the model thinks, so it is told not to
    developer: bool = False  # models that reason are instructed by the developer, not by the system
    temperature_for_reasoners: bool = True
    think_tags: bool = False  # reasoning may come as <think>…</think> at the beginning of the text
    # How reasoning is sent back. As `reasoning_content` it goes with every reply, even when it is empty: in thinking
    # mode, vendors refuse a history with tools that lacks it anywhere, and pass over what they have no use for.
    sends_back: Literal["reasoning_content", "reasoning_details"] | None = None
    no_reasoning: str = ""  # what stands for it where there was none
    omits_finish: bool = False  # [DONE] may come without a finish_reason
    call_id_length: int | None = None  # ids of calls are of letters and digits, exactly as many
    # It refuses a user right after a tool, an assistant without a word or a call, and an assistant at the end.
    strict_turns: bool = False


OPENAI: Final = Dialect(
    max_tokens="max_completion_tokens",
    parallel_tool_calls=True,
    strict=True,
    user=True,
    effort="reasoning_effort",
    verbosity=True,
    developer=True,
    temperature_for_reasoners=False,
)
_AZURE: Final = msgspec.structs.replace(OPENAI, developer=False)
# At another address it may be OpenAI behind a gateway, or a server of one's own that speaks alike.
_LIKE_OPENAI: Final = msgspec.structs.replace(OPENAI, developer=False, think_tags=True, omits_finish=True)
_LOCAL: Final = Dialect(effort="reasoning_effort", think_tags=True, omits_finish=True, named_choice=False)
_SERVING: Final = msgspec.structs.replace(_LOCAL, parallel_tool_calls=True, user=True, named_choice=True)
_THINKING: Final = Dialect(thinking=True, sends_back="reasoning_content")
# An empty text counts as missing here. Demands are refused while a model thinks, and some cannot be told not to.
_MOONSHOT: Final = msgspec.structs.replace(_THINKING, forced_choice=False, no_reasoning=" ")
_UNKNOWN: Final = Dialect(think_tags=True, omits_finish=True, named_choice=False)
_DIALECTS: Final[dict[str, Dialect]] = {
    "openai": OPENAI,
    "azure": _AZURE,
    "ollama": _LOCAL,
    "lmstudio": _LOCAL,
    "lmstudio_openai": _LOCAL,
    "vllm": _SERVING,
    "sglang": _SERVING,
    "openrouter": Dialect(
        parallel_tool_calls=True, user=True, effort="reasoning", verbosity=True, sends_back="reasoning_details"
    ),
    # Groq and Cerebras take reasoning out of the text only for some models, or only when there are tools.
    "groq": Dialect(
        max_tokens="max_completion_tokens",
        parallel_tool_calls=True,
        user=True,
        effort="reasoning_effort",
        think_tags=True,
    ),
    "xai": Dialect(max_tokens="max_completion_tokens", parallel_tool_calls=True, user=True, effort="reasoning_effort"),
    "cerebras": Dialect(max_tokens="max_completion_tokens", user=True, effort="reasoning_effort", think_tags=True),
    "deepseek": msgspec.structs.replace(_THINKING, json="object", thinks_or_obeys=True),
    # Usage comes unasked. Told to call none of its tools, it answers with garbled text. JSON by an option does not go
    # together with tools.
    "mistral": Dialect(
        parallel_tool_calls=True,
        asks_for_usage=False,
        json="prompt",
        none_choice=False,
        think_tags=True,
        call_id_length=9,
        strict_turns=True,
    ),
    "moonshot": _MOONSHOT,
    "moonshot_coding": _MOONSHOT,
    "zai": msgspec.structs.replace(_THINKING, json="object", forced_choice=False),
    "zai_coding": msgspec.structs.replace(_THINKING, json="object", forced_choice=False),
    "together": Dialect(think_tags=True, effort="reasoning_effort"),
    "fireworks": Dialect(think_tags=True, user=True, effort="reasoning_effort"),
}
# A vendor's own name may stand before the model's, as in openai/o3.
_REASONERS: Final = re.compile(r"(?:.*/)?(?:o[1-9](?:$|-)|gpt-5(?!.*chat)|gpt-oss)")
_THINKS_WITHOUT_TOOLS: Final = re.compile(r"(?:.*/)?gpt-(?:5\.(?:[4-9]|\d\d)|[6-9])(?!.*chat)")
_ONE_CALL_AT_A_TIME: Final = re.compile(r"(?:.*/)?o[1-9](?:$|-)")


def dialect_of(provider_type: str, *, official: bool = True) -> Dialect:
    if provider_type == "openai" and not official:
        return _LIKE_OPENAI
    return _DIALECTS.get(provider_type, _UNKNOWN)


def reasons(info: ModelInfo) -> bool:
    return info.abilities.reasoning or _REASONERS.match(info.name) is not None


def thinks_only_without_tools(info: ModelInfo) -> bool:
    """OpenAI's newer models reason with tools only through Responses. The chat API refuses tools to one that was not
    told to leave reasoning alone, for it reasons by itself."""
    return _THINKS_WITHOUT_TOOLS.match(info.name) is not None


def refuses_parallel_flag(info: ModelInfo) -> bool:
    """OpenAI's o models take no word about parallel calls, not even that there are to be none."""
    return _ONE_CALL_AT_A_TIME.match(info.name) is not None
