"""Groups on the wire. The pattern that a group follows has settings of its own, and is fixed when the group is made."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.records import Group
from holdfast.ids import UUID4_PATTERN
from holdfast.wire.bounds import Id, Many, Name

GroupType = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]
AgentKey = Annotated[str, Field(max_length=256, pattern=f"^agent-{UUID4_PATTERN}$")]
BlockKey = Annotated[str, Field(max_length=256, pattern=f"^block-{UUID4_PATTERN}$")]
Frequency = Annotated[int, Field(ge=1, le=2**31 - 1)]
Turns = Annotated[int, Field(ge=1, le=1_000)]
BufferLength = Annotated[int, Field(ge=1, le=2**31 - 1)]
_FINISHED: Final = "DONE!"


class RoundRobin(BaseModel):
    manager_type: Literal["round_robin"] = "round_robin"
    max_turns: Turns | None = None


class Supervisor(BaseModel):
    manager_type: Literal["supervisor"] = "supervisor"
    manager_agent_id: AgentKey


class Dynamic(BaseModel):
    manager_type: Literal["dynamic"] = "dynamic"
    manager_agent_id: AgentKey
    termination_token: Name | None = _FINISHED
    max_turns: Turns | None = None


class Sleeptime(BaseModel):
    manager_type: Literal["sleeptime"] = "sleeptime"
    manager_agent_id: AgentKey
    sleeptime_agent_frequency: Frequency | None = None


class VoiceSleeptime(BaseModel):
    manager_type: Literal["voice_sleeptime"] = "voice_sleeptime"
    manager_agent_id: AgentKey
    max_message_buffer_length: BufferLength | None = None
    min_message_buffer_length: BufferLength | None = None


class DynamicChange(BaseModel):
    manager_type: Literal["dynamic"] = "dynamic"
    manager_agent_id: AgentKey | None = None
    termination_token: Name | None = None
    max_turns: Turns | None = None


class SleeptimeChange(BaseModel):
    manager_type: Literal["sleeptime"] = "sleeptime"
    manager_agent_id: AgentKey | None = None
    sleeptime_agent_frequency: Frequency | None = None


class VoiceSleeptimeChange(BaseModel):
    manager_type: Literal["voice_sleeptime"] = "voice_sleeptime"
    manager_agent_id: AgentKey | None = None
    max_message_buffer_length: BufferLength | None = None
    min_message_buffer_length: BufferLength | None = None


Pattern = Annotated[
    RoundRobin | Supervisor | Dynamic | Sleeptime | VoiceSleeptime,
    Field(discriminator="manager_type"),
]
PatternChange = Annotated[
    RoundRobin | Supervisor | DynamicChange | SleeptimeChange | VoiceSleeptimeChange,
    Field(discriminator="manager_type"),
]


class GroupCreate(BaseModel):
    agent_ids: Many[AgentKey]
    description: str
    manager_config: Pattern = RoundRobin()
    project_id: Id | None = None
    shared_block_ids: Many[BlockKey] = []
    hidden: bool | None = None


class GroupUpdate(BaseModel):
    """Only what is sent changes."""

    agent_ids: Many[AgentKey] | None = None
    description: str | None = None
    manager_config: PatternChange | None = None
    project_id: Id | None = None
    shared_block_ids: Many[BlockKey] | None = None


class GroupView(TypedDict):
    id: str
    manager_type: str
    agent_ids: list[str]
    description: str
    project_id: str | None
    template_id: str | None
    base_template_id: str | None
    deployment_id: str | None
    shared_block_ids: list[str]
    manager_agent_id: str | None
    termination_token: str | None
    max_turns: int | None
    sleeptime_agent_frequency: int | None
    turns_counter: int | None
    last_processed_message_id: str | None
    max_message_buffer_length: int | None
    min_message_buffer_length: int | None
    hidden: bool | None


def pattern_fields(config: BaseModel) -> dict[str, Any]:
    """The fields of a Group that its pattern sets."""
    return config.model_dump(exclude={"manager_type"})


def pattern_changes(config: BaseModel) -> dict[str, Any]:
    """Those of them that a change names. Null clears what may be empty."""
    sent = config.model_dump(exclude={"manager_type"}, exclude_unset=True)
    return {name: value for name, value in sent.items() if value is not None or name != "manager_agent_id"}


def group_view(group: Group) -> GroupView:
    return {
        "id": group.id,
        "manager_type": group.manager_type,
        "agent_ids": list(group.agent_ids),
        "description": group.description,
        "project_id": group.project_id,
        "template_id": None,
        "base_template_id": None,
        "deployment_id": None,
        "shared_block_ids": list(group.shared_block_ids),
        "manager_agent_id": group.manager_agent_id,
        "termination_token": group.termination_token,
        "max_turns": group.max_turns,
        "sleeptime_agent_frequency": group.sleeptime_agent_frequency,
        "turns_counter": group.turns_counter,
        "last_processed_message_id": group.last_processed_message_id,
        "max_message_buffer_length": None,
        "min_message_buffer_length": None,
        "hidden": group.hidden,
    }
