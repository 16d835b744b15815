"""Create an agent: everything is decided first, then written in one transaction, or not at all.

Its history begins with its system message, and what the caller or its kind puts after it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.actions.agents.model_choice import Defaults, Embedding, chosen_embedding, first_choice, own_wish
from holdfast.actions.agents.read import file_blocks
from holdfast.actions.blocks import check_limit
from holdfast.actions.folders.attach import attach_known
from holdfast.actions.identities import require_identities
from holdfast.actions.tools import base_tools
from holdfast.core import dates, system_prompt
from holdfast.core.default_texts import DEFAULT_SYSTEM, SLEEPTIME_PERSONA, SUMMARY
from holdfast.core.messages import Message, Text, Thoughts, ToolCall, ToolReturn
from holdfast.core.records import (
    Agent,
    Block,
    CompactionSettings,
    Folder,
    Group,
    Identity,
    ModelChoice,
    Thread,
    Tool,
)
from holdfast.core.tool_rules import Rule, RunFirst
from holdfast.errors import Invalid, NotFound, Unsupported
from holdfast.llm.base import Catalog
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store import folders as folder_rows
from holdfast.store import groups as group_rows
from holdfast.store import identities as identity_rows
from holdfast.store import messages as message_rows
from holdfast.store import threads as thread_rows
from holdfast.store import tools as tool_rows
from holdfast.store.identities import AGENTS
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agents import (
    MASKED,
    AgentFields,
    AgentState,
    CompactionRequestSettings,
    CreateAgentRequest,
    InitialMessage,
    Relations,
    Secret,
    agent_state,
)
from holdfast.wire.blocks import CreateBlock, new_block, unique_tags
from holdfast.wire.folders import FileBlockView
from holdfast.wire.model_settings import ModelViews, sent_settings
from holdfast.wire.tool_rules import rules_of

MAX_FILES_OPEN: Final = 1000
MAX_FILE_CHARS: Final = 2**31 - 1
SLEEPTIME_FREQUENCY: Final = 5
NO_TURN_YET: Final = -1
_SUBAGENT_TAG: Final = "role:subagent"
_SEVERAL_FIRST_TOOLS: Final = ("gpt-4o", "gpt-4o-mini")
# Of the names of agents that were given none, such as `AmberHeron`.
_ADJECTIVES: Final = (
    "Amber Ample Azure Brave Bright Calm Candid Clever Coral Crisp Deft Eager Early Fair Fleet Fond Gentle Gilded "
    "Glad Golden Hardy Honest Humble Ivory Jade Jolly Keen Kind Light Lively Lucid Mellow Merry Mild Neat Nimble "
    "Noble Opal Patient Plucky Polite Prime Quick Quiet Ready Rosy Sage Serene Silver Sincere Sleek Snug Steady "
    "Sunny Swift Tidy Tranquil True Velvet Vivid Warm Wise Witty"
)
_NOUNS: Final = (
    "Acorn Anchor Aspen Badger Beacon Birch Brook Canyon Cedar Clover Comet Condor Cove Crane Delta Dolphin Ember "
    "Falcon Fern Finch Fjord Garnet Glade Grove Harbor Hazel Heron Island Juniper Kestrel Lagoon Lantern Larch Lark "
    "Linden Lynx Maple Marten Meadow Mesa Moss Otter Owl Pebble Pine Plover Prairie Quail Quarry Raven Reef Ridge "
    "River Robin Sparrow Spruce Summit Thistle Tide Valley Walnut Willow Wren"
)
_GREETING: Final = "Hello! I am ready. What would you like to do first?"
_THOUGHT: Final = "I have just been created. I should say hello."
# Kinds whose history begins with nothing but the system message.
_BARE: Final = frozenset({"letta_v1_agent", "sleeptime_agent", "voice_sleeptime_agent"})
# Kinds that speak by calling send_message.
_MESSENGERS: Final = frozenset({"memgpt_agent", "memgpt_v2_agent", "voice_convo_agent", "split_thread_agent"})


class Created(msgspec.Struct, frozen=True):
    agent: Agent
    blocks: list[Block]
    tools: list[Tool]
    message_ids: list[str]
    identities: list[Identity]
    folders: list[Folder]
    file_blocks: list[FileBlockView]
    group: Group | None = None


async def create_agent(
    request: CreateAgentRequest,
    *,
    database: Database,
    catalog: Catalog,
    secretbox: SecretBox,
    defaults: Defaults,
    now_us: int,
) -> AgentState:
    refuse_unbuilt(request)
    check_file_limits(request)
    model = await first_choice(catalog, defaults, request)
    embedding = await chosen_embedding(catalog, defaults.embedding, request)
    draft = _draft(request, model, embedding, now_us)
    blocks = [
        new_block(block, ids.new("block"), now_us + index, stock_description=True)
        for index, block in enumerate(request.memory_blocks or ())
    ]
    for block in blocks:
        check_limit(block)
    values = request.given_secrets or {}
    secrets = seal_secrets(values, secretbox)

    async def write(tx: Transaction) -> Created:
        created = await _write(tx, request, draft, blocks, secrets, now_us)
        if not request.enable_sleeptime:
            return created
        group = await add_sleeptime_agent(tx, created.agent, created.blocks, now_us)
        return msgspec.structs.replace(created, group=group)

    created = await database.write(write)
    relations = Relations(
        message_ids=created.message_ids,
        blocks=created.blocks,
        tools=created.tools,
        tags=unique_tags(request.tags),
        identities=created.identities,
        folders=created.folders,
        managed_group=created.group,
        secrets=[Secret(secret.id, secret.key, values[secret.key], secret.description) for secret in secrets],
    )
    state = agent_state(created.agent, relations, ModelViews())
    state["memory"]["file_blocks"] = created.file_blocks
    return state


def refuse_unbuilt(request: AgentFields) -> None:
    if request.unbuilt:
        raise Unsupported(request.unbuilt)


def check_file_limits(request: AgentFields) -> None:
    if request.max_files_open is not None and not 0 <= request.max_files_open <= MAX_FILES_OPEN:
        raise Invalid(f"max_files_open must be from 0 to {MAX_FILES_OPEN}, not {request.max_files_open}.")
    chars = request.per_file_view_window_char_limit
    if chars is not None and not 0 <= chars <= MAX_FILE_CHARS:
        raise Invalid(f"per_file_view_window_char_limit must be from 0 to {MAX_FILE_CHARS}, not {chars}.")


def check_first_rules(rules: Sequence[Rule], model_name: str) -> None:
    """Most models can be made to call one given tool first, not one of several."""
    firsts = [rule.tool_name for rule in rules if isinstance(rule, RunFirst)]
    if len(firsts) > 1 and model_name not in _SEVERAL_FIRST_TOOLS:
        raise Invalid(f"Only one run_first rule is allowed with the model {model_name}, not {len(firsts)}.")


def compaction_of(sent: CompactionRequestSettings, known: CompactionSettings, handle: str) -> CompactionSettings:
    """Fields that were sent replace the known ones. Another mode has another prompt.

    What was not chosen is shown as what it means, and stays unchosen when it is written back. `handle`: the agent's own
    model.
    """
    changes: dict[str, Any] = {name: getattr(sent, name) for name in sent.model_fields_set}
    if "model" in changes:
        changes["model"] = own_wish(changes["model"])
    for name, meaning in (("model", handle), ("prompt", SUMMARY[known.mode])):
        if getattr(known, name) is None and changes.get(name) == meaning:
            del changes[name]
    if "mode" in changes and changes["mode"] != known.mode:
        changes.setdefault("prompt", None)
    if changes.get("model_settings") is not None and sent.model_settings is not None:
        changes["model_settings"] = sent_settings(sent.model_settings)
    return msgspec.structs.replace(known, **changes)


def seal_secrets(values: dict[str, str], secretbox: SecretBox) -> list[agent_rows.SealedSecret]:
    if masked := sorted(key for key, value in values.items() if value == MASKED):
        raise Invalid(
            f"Hidden secrets are read as {MASKED!r}, which cannot be stored as a value: send the values of "
            f"{', '.join(masked)} themselves."
        )
    return [
        agent_rows.SealedSecret(ids.new("agent-env"), key, secretbox.seal(value))
        for key, value in sorted(values.items())
    ]


async def asked_tools(tx: Transaction, tool_ids: Sequence[str], names: Sequence[str], now_us: int) -> list[Tool]:
    """Each once, in the order asked for."""
    by_id = await tool_rows.find_many(tx, tool_ids, keep=True)
    if missing := [tool_id for tool_id in tool_ids if tool_id not in by_id]:
        raise Invalid(f"Tools not found by id: {', '.join(missing)}")
    by_name = await base_tools.find_named(tx, names, now_us)
    if missing := [name for name in names if name not in by_name]:
        raise Invalid(f"Tools not found by name: {', '.join(missing)}")
    found = [by_name[name] for name in names] + [by_id[tool_id] for tool_id in tool_ids]
    return list({tool.id: tool for tool in found}.values())


async def asked_blocks(tx: Transaction, block_ids: Sequence[str]) -> list[Block]:
    found = await block_rows.find_many(tx, block_ids, keep=True)
    if missing := [block_id for block_id in block_ids if block_id not in found]:
        raise NotFound(f"Blocks not found: {', '.join(missing)}")
    return [found[block_id] for block_id in dict.fromkeys(block_ids)]


def _draft(request: CreateAgentRequest, model: ModelChoice, embedding: Embedding, now_us: int) -> Agent:
    system = request.system if request.system is not None else DEFAULT_SYSTEM.get(request.agent_type)
    if system is None:
        raise Invalid(f"An agent of type {request.agent_type} needs its instructions: send system.")
    rules = rules_of(request.tool_rules or ())
    check_first_rules(rules, model.handle.partition("/")[2])
    compaction = CompactionSettings()
    if request.compaction_settings is not None:
        compaction = compaction_of(request.compaction_settings, compaction, model.handle)
    return Agent(
        id=ids.new("agent"),
        name=request.name or _random_name(),
        agent_type=request.agent_type,
        system=system,
        model=model,
        embedding=embedding.handle,
        embedding_config=embedding.config,
        description=request.description,
        metadata=request.metadata,
        tool_rules=rules,
        compaction=compaction,
        timezone=request.timezone or "UTC",
        message_buffer_autoclear=request.agent_type == "workflow_agent" or bool(request.message_buffer_autoclear),
        enable_sleeptime=request.enable_sleeptime,
        max_files_open=request.max_files_open,
        per_file_view_window_char_limit=request.per_file_view_window_char_limit,
        hidden=True if _SUBAGENT_TAG in (request.tags or ()) else request.hidden,
        project_id=request.project_id,
        template_id=request.template_id,
        base_template_id=request.base_template_id,
        created_us=now_us,
        updated_us=now_us,
    )


async def _write(
    tx: Transaction,
    request: CreateAgentRequest,
    draft: Agent,
    new_blocks: list[Block],
    secrets: Sequence[agent_rows.SealedSecret],
    now_us: int,
) -> Created:
    names = list(request.tools or ())
    if request.include_base_tools:
        names = [*base_tools.base_tool_names(draft.agent_type, draft.enable_sleeptime), *names]
    tools = await asked_tools(tx, request.tool_ids or (), list(dict.fromkeys(names)), now_us)
    blocks = [*new_blocks, *await asked_blocks(tx, request.block_ids or ())]
    blocks.sort(key=lambda block: (block.created_us, block.id))
    agent = _with_default_rules(draft, request, tools)
    await agent_rows.insert(tx, agent)
    await block_rows.insert_many(tx, new_blocks)
    await block_rows.attach_many(tx, agent.id, blocks)
    await tool_rows.attach_many(tx, agent.id, [tool.id for tool in tools])
    await agent_rows.add_tags(tx, agent.id, request.tags or ())
    await agent_rows.add_secrets(tx, agent.id, secrets)
    identities = await require_identities(tx, request.identity_ids or ())
    await identity_rows.add_owners(tx, AGENTS, agent.id, [identity.id for identity in identities])
    message_ids = await _begin_thread(tx, request, agent, blocks, now_us)
    folders: list[Folder] = []
    if request.given_folders:  # they bring tools along, and these may bring rules
        await attach_known(tx, agent.id, list(dict.fromkeys(request.given_folders)), now_us)
        folders = await folder_rows.of_agent(tx, agent.id)
        agent, tools = await agent_rows.get(tx, agent.id), await tool_rows.of_agent(tx, agent.id)
    tools.sort(key=lambda tool: (tool.created_us, tool.name))
    # Read again: they have this agent now.
    shown = (await identity_rows.of_agents(tx, [agent.id])).get(agent.id, []) if identities else []
    in_view = await file_blocks(tx, agent) if folders else []
    return Created(agent, blocks, tools, message_ids, shown, folders, in_view)


async def add_sleeptime_agent(tx: Transaction, agent: Agent, blocks: Sequence[Block], now_us: int) -> Group:
    """A second agent, which looks after the blocks of this one, and the group that they make. It has this agent's
    model, and a block of its own that says how it is to go about it."""
    check_can_be_looked_after(agent.agent_type)
    request = CreateAgentRequest(agent_type="sleeptime_agent", block_ids=[block.id for block in blocks])
    draft = _draft(request, agent.model, Embedding(agent.embedding, agent.embedding_config), now_us)
    draft = msgspec.structs.replace(
        draft, name=f"{agent.name}-sleeptime", timezone=agent.timezone, project_id=agent.project_id
    )
    own = CreateBlock(label="memory_persona", value=SLEEPTIME_PERSONA)
    is_taken = any(block.label == own.label for block in blocks)
    new_blocks = [] if is_taken else [new_block(own, ids.new("block"), now_us)]
    created = await _write(tx, request, draft, new_blocks, (), now_us)
    group = Group(
        id=ids.new("group"),
        manager_type=group_rows.SLEEPTIME,
        manager_agent_id=agent.id,
        agent_ids=(created.agent.id,),
        sleeptime_agent_frequency=SLEEPTIME_FREQUENCY,
        turns_counter=NO_TURN_YET,
        created_us=now_us,
        updated_us=now_us,
    )
    await group_rows.insert(tx, group)
    return group


def check_can_be_looked_after(agent_type: str) -> None:
    if agent_type in ("voice_convo_agent", "voice_sleeptime_agent"):
        raise Unsupported(
            "Voice agents are not part of Holdfast: choose another agent_type, or leave out enable_sleeptime."
        )


def _with_default_rules(draft: Agent, request: CreateAgentRequest, tools: Sequence[Tool]) -> Agent:
    rules = draft.tool_rules
    if base_tools.wants_base_rules(
        draft.agent_type, request.include_base_tool_rules, draft.model.handle.partition("/")[2]
    ):
        rules = base_tools.with_rules(rules, base_tools.base_rules(tools))
    rules = base_tools.with_rules(rules, base_tools.approval_rules(tools))
    return msgspec.structs.replace(draft, tool_rules=rules)


async def _begin_thread(
    tx: Transaction, request: CreateAgentRequest, agent: Agent, blocks: Sequence[Block], now_us: int
) -> list[str]:
    """The default thread has the agent's id and begins with the system message."""
    messages = first_messages(agent, blocks, request.initial_message_sequence, now_us)
    message_ids = [message.id for message in messages]
    thread = Thread(id=agent.id, agent_id=agent.id, created_us=now_us, updated_us=now_us)
    await message_rows.insert_many(tx, agent.id, messages)
    await thread_rows.insert(tx, thread, message_ids, system_prompt.digest(agent, blocks, None))
    return message_ids


def _random_name() -> str:
    return random.choice(_ADJECTIVES.split()) + random.choice(_NOUNS.split())


def first_messages(
    agent: Agent, blocks: Sequence[Block], sequence: Sequence[InitialMessage] | None, now_us: int
) -> list[Message]:
    system = system_prompt.compile_system(
        agent,
        blocks,
        conversation_id=None,
        recompiled_at_text=dates.local_time(now_us, agent.timezone),
        previous_messages=0,
    )
    messages = [_message("system", (Text(system),), now_us)]
    if sequence is not None:
        for given in sequence:
            messages.extend(_given(agent, given, now_us))
    elif agent.agent_type not in _BARE:
        messages.extend(_greeting(agent, now_us))
    return messages


def _given(agent: Agent, given: InitialMessage, now_us: int) -> Iterator[Message]:
    text = _text(given.content)
    match given.role:
        case "user":
            message = _message("user", (Text(text),), now_us)
            yield msgspec.structs.replace(
                message, otid=given.otid, name=given.name, sender_id=given.sender_id, group_id=given.group_id
            )
        case "system":
            yield _message("user", (Text(_packed(agent, {"type": "system_alert", "message": text}, now_us)),), now_us)
        case "assistant" if agent.agent_type in _MESSENGERS:
            yield from _spoken(agent, (), text, now_us)
        case "assistant":
            yield _message("assistant", (Text(text),), now_us, model=agent.model.handle)
        case _:
            raise Invalid(
                f"initial_message_sequence takes messages of the roles user, system and assistant, not {given.role!r}."
            )


def _greeting(agent: Agent, now_us: int) -> Iterator[Message]:
    yield from _spoken(agent, (Thoughts(_THOUGHT),), _GREETING, now_us)
    login = {"type": "login", "last_login": "Never (first login)"}
    yield _message("user", (Text(_packed(agent, login, now_us)),), now_us)


def _spoken(agent: Agent, thoughts: tuple[Thoughts, ...], text: str, now_us: int) -> Iterator[Message]:
    """The agent's words as these kinds of agent say them: a call of send_message, and its return."""
    arguments = msgspec.json.encode({"message": text}).decode()
    call = ToolCall(ids.new("call"), "send_message", arguments)
    yield _message("assistant", (*thoughts, call), now_us, model=agent.model.handle)
    answer = ToolReturn(call.id, call.name, "success", "Sent message successfully.")
    yield msgspec.structs.replace(_message("tool", (answer,), now_us), name=call.name)


def _message(role: Any, parts: tuple[Any, ...], now_us: int, model: str | None = None) -> Message:
    return Message(id=ids.new("message"), role=role, parts=parts, created_us=now_us, model=model)


def _packed(agent: Agent, fields: dict[str, str], now_us: int) -> str:
    return msgspec.json.encode({**fields, "time": dates.local_time(now_us, agent.timezone)}).decode()


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        text = content
    elif all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in content):
        text = "\n".join(part["text"] for part in content)
    else:
        raise Invalid("initial_message_sequence may hold text only.")
    if not text.strip():
        raise Invalid("Message content is empty or invalid")
    return text
