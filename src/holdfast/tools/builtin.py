"""The built-in tools as data: their descriptions, schemas and types.

What they do is elsewhere: memory tools in `core.memory`, `conversation_search` in `tools.history`, archival memory in
`tools.archival`, files in `tools.files`, what listening agents keep in `tools.voice`, messages to other agents in
`actions.ask_agents`, and what runs in the sandbox in `tools.sandbox`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.core.records import Tool
from holdfast.tools import agents, files, voice


class BuiltinTool(msgspec.Struct, frozen=True, kw_only=True):
    tool_type: str
    description: str
    json_schema: dict[str, Any]  # {name, description, parameters}
    tags: tuple[str, ...]
    parallel_safe: bool = False
    source: str | None = None  # of one that runs in the sandbox, like a custom tool


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_LABEL: Final = _text("The label of the memory block to edit.")
_INSERT_LINE: Final = {
    "type": "integer",
    "description": "The line after which to insert: 0 for the beginning, -1 (the default) for the end.",
}
_NO_LINE_NUMBERS: Final = " Never include line numbers such as `1→`: they are shown to help you and are no part of it."


def _builtin(
    name: str,
    tool_type: str,
    description: str,
    properties: dict[str, dict[str, Any]],
    required: tuple[str, ...],
    *,
    parallel_safe: bool = False,
    source: str | None = None,
) -> tuple[str, BuiltinTool]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return name, BuiltinTool(
        tool_type=tool_type,
        description=description,
        json_schema={"name": name, "description": description, "parameters": parameters},
        tags=(tool_type,),
        parallel_safe=parallel_safe,
        source=source,
    )


_CORE: Final = (
    _builtin(
        "send_message",
        "letta_core",
        "Send a message to the human user.",
        {"message": _text("What to say, in full.")},
        ("message",),
    ),
    _builtin(
        "conversation_search",
        "letta_core",
        "Search everything that was said in earlier conversations, including what is no longer in view. Without a "
        "query it shows the most recent messages.",
        {
            "query": _text("Words that the messages you look for contain, as they were written."),
            "roles": {
                "type": "array",
                "items": {"type": "string", "enum": ["assistant", "user", "tool"]},
                "description": "Whose messages to search. Default: the user's and your own.",
            },
            "limit": {"type": "integer", "description": "How many messages to show at most. Default: 5."},
            "start_date": _text("Only messages from then on: YYYY-MM-DD or YYYY-MM-DDTHH:MM, in your own time zone."),
            "end_date": _text("Only messages until then, that day or minute included; written like start_date."),
        },
        (),
        parallel_safe=True,
    ),
)
_ARCHIVAL: Final = (
    _builtin(
        "archival_memory_insert",
        "letta_core",
        "Store a text in your archival memory, which keeps any number of them out of view until you search for it. "
        "Write it so that it can be understood by itself.",
        {
            "content": _text("The text to remember."),
            "tags": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Words to sort it by, which a search can ask for.",
            },
        },
        ("content",),
    ),
    _builtin(
        "archival_memory_search",
        "letta_core",
        "Search your archival memory for texts that are about something, best matches first.",
        {
            "query": _text("What to look for, in your own words."),
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Only texts with these tags."},
            "tag_match_mode": {
                "type": "string",
                "enum": ["any", "all"],
                "description": "Whether one of the tags is enough (any, the default) or all of them are needed.",
            },
            "top_k": {"type": "integer", "description": "How many texts to show at most. Default: 5."},
            "start_datetime": _text(
                "Only texts stored from then on: YYYY-MM-DD or YYYY-MM-DDTHH:MM, in your own time zone."
            ),
            "end_datetime": _text("Only texts stored until then, that day or minute included."),
        },
        ("query",),
        parallel_safe=True,
    ),
)
_MEMORY: Final = (
    _builtin(
        "core_memory_append",
        "letta_memory_core",
        "Add text at the end of a memory block, on a line of its own.",
        {"label": _LABEL, "content": _text("The text to add.")},
        ("label", "content"),
    ),
    _builtin(
        "core_memory_replace",
        "letta_memory_core",
        "Replace text in a memory block, wherever it occurs. To delete it, replace it with an empty string.",
        {
            "label": _LABEL,
            "old_content": _text("The text to replace, exactly as it stands."),
            "new_content": _text("What to write in its place."),
        },
        ("label", "old_content", "new_content"),
    ),
    _builtin(
        "memory",
        "letta_memory_core",
        "Manage your memory blocks. Commands: create (path, description, file_text), str_replace (path, old_string, "
        "new_string), insert (path, insert_text, insert_line), delete (path), rename (old_path, new_path; or path and "
        "a new description).",
        {
            "command": _text("What to do: create, str_replace, insert, delete or rename."),
            "path": _text("The memory block: /memories/<label>, or just its label."),
            "file_text": _text("create: the value of the new block."),
            "description": _text("create: what the block is for. rename: its new description."),
            "old_string": _text("str_replace: the text to replace, exactly as it stands; it must occur once."),
            "new_string": _text("str_replace: what to write in its place."),
            "insert_line": _INSERT_LINE,
            "insert_text": _text("insert: the text to insert, as whole lines."),
            "old_path": _text("rename: the memory block to rename."),
            "new_path": _text("rename: its new path or label."),
        },
        ("command",),
    ),
    _builtin(
        "memory_apply_patch",
        "letta_memory_core",
        "Change memory with a patch. For one block, give its label and hunks separated by `@@` whose lines begin with "
        "' ' (context), '-' (removed) or '+' (added); the context must occur exactly once, and a hunk that only adds "
        "goes to the end. For several blocks use sections: `*** Add Block: <label>` (then an optional "
        "`Description: <text>` line and + lines), `*** Delete Block: <label>`, `*** Update Block: <label>` (then an "
        "optional `*** Move to: <new label>` and hunks). Either all of a patch is applied or none of it."
        + _NO_LINE_NUMBERS,
        {
            "label": _text("The label of the memory block to edit. Ignored when the patch names its blocks."),
            "patch": _text("The patch."),
        },
        ("label", "patch"),
    ),
)
_EDITING: Final = (
    _builtin(
        "memory_replace",
        "letta_sleeptime_core",
        "Replace one piece of text in a memory block. The text must occur exactly once; include what is around it to "
        "make it so. To delete it, replace it with an empty string." + _NO_LINE_NUMBERS,
        {
            "label": _LABEL,
            "old_string": _text("The text to replace, exactly as it stands, spaces and line breaks included."),
            "new_string": _text("What to write in its place."),
        },
        ("label", "old_string", "new_string"),
    ),
    _builtin(
        "memory_insert",
        "letta_sleeptime_core",
        "Insert text into a memory block, as whole lines." + _NO_LINE_NUMBERS,
        {"label": _LABEL, "new_string": _text("The text to insert."), "insert_line": _INSERT_LINE},
        ("label", "new_string"),
    ),
    _builtin(
        "memory_rethink",
        "letta_sleeptime_core",
        "Rewrite a whole memory block, to reorganise or condense it. For small edits use the other memory tools."
        + _NO_LINE_NUMBERS,
        {"label": _LABEL, "new_memory": _text("The whole new value, with everything that is still true and useful.")},
        ("label", "new_memory"),
    ),
    _builtin(
        "memory_finish_edits",
        "letta_sleeptime_core",
        "Say that you have finished editing memory.",
        {},
        (),
    ),
)
_OTHER_AGENT: Final = _text("The id of the agent to send the message to: agent-…")
_TO_AGENT: Final = _text("What to say to it, with all that it needs to know: it does not see your conversation.")
_TAGS_LIST: Final = {"type": "array", "items": {"type": "string"}}
_AGENTS: Final = (
    _builtin(
        agents.ASK,
        "letta_multi_agent_core",
        "Send a message to another agent, and wait for its answer.",
        {"message": _TO_AGENT, "other_agent_id": _OTHER_AGENT},
        ("message", "other_agent_id"),
    ),
    _builtin(
        agents.TELL,
        "letta_multi_agent_core",
        "Send a message to another agent, and go on at once. You are not told what it answers.",
        {"message": _TO_AGENT, "other_agent_id": _OTHER_AGENT},
        ("message", "other_agent_id"),
    ),
    _builtin(
        agents.ASK_TAGGED,
        "letta_multi_agent_core",
        "Send a message to all agents that have certain tags, and wait for their answers.",
        {
            "message": _TO_AGENT,
            "match_all": {**_TAGS_LIST, "description": "An agent must have all of these tags. May be empty."},
            "match_some": {**_TAGS_LIST, "description": "An agent must have any of these tags, if there are any."},
        },
        ("message", "match_all", "match_some"),
    ),
)
_CODE: Final = (
    _builtin(
        "run_code",
        "letta_builtin",
        "Run a program in a sandbox. You are told what it printed, the value of its last expression, and how it "
        "failed. Python can call your other tools as functions, by their names, unless they need approval. Nothing is "
        "kept from one call to the next.",
        {
            "code": _text("The whole program."),
            "language": {
                "type": "string",
                "enum": ["python", "js", "ts", "r", "java"],
                "description": "What it is written in. This server runs python and js.",
            },
        },
        ("code", "language"),
        parallel_safe=True,
        source="from holdfast.tools.sandbox.tool_host import run_code\n",
    ),
    _builtin(
        "run_code_with_tools",
        "letta_builtin",
        "Run a Python program in a sandbox that can call your other tools as functions, by their names: result = "
        "some_tool(argument=1). They take and return plain data. Tools that need approval, and those that the server "
        "itself carries out, such as memory tools, cannot be called from it. You are told what the program printed, "
        "the value of its last expression, and how it failed. Nothing is kept from one call to the next.",
        {"code": _text("The whole program, in Python.")},
        ("code",),
        source="from holdfast.tools.sandbox.tool_host import run_code_with_tools\n",
    ),
)
_DOMAINS: Final = {"type": "array", "items": {"type": "string"}}
_WEB: Final = (
    _builtin(
        "web_search",
        "letta_builtin",
        "Search the web. You are told the title, the address and a summary of each result.",
        {
            "query": _text("What to look for."),
            "num_results": {"type": "integer", "description": "How many results at most. Default: 10."},
            "category": {
                "type": "string",
                "enum": [
                    "company",
                    "research paper",
                    "news",
                    "pdf",
                    "github",
                    "tweet",
                    "personal site",
                    "linkedin profile",
                    "financial report",
                ],
                "description": "Only results of this kind.",
            },
            "include_text": {"type": "boolean", "description": "Whether to show the whole text of each result."},
            "include_domains": {**_DOMAINS, "description": "Only results from these domains."},
            "exclude_domains": {**_DOMAINS, "description": "No results from these domains."},
            "start_published_date": _text("Only results published from then on: YYYY-MM-DD."),
            "end_published_date": _text("Only results published until then: YYYY-MM-DD."),
            "user_location": _text("The two letters of the country to search from, such as US."),
        },
        ("query",),
        parallel_safe=True,
        source="from holdfast.tools.sandbox.web_tools import web_search\n",
    ),
    _builtin(
        "fetch_webpage",
        "letta_builtin",
        "Fetch a page of the web, and read it as text.",
        {"url": _text("Its whole address, with https://.")},
        ("url",),
        parallel_safe=True,
        source="from holdfast.tools.sandbox.web_tools import fetch_webpage\n",
    ),
)
_FILES: Final = (
    _builtin(
        files.OPEN,
        "letta_files_core",
        "Open files of your folders, or parts of them, so that you see what is in them.",
        {
            "file_requests": {
                "type": "array",
                "description": "The files to open.",
                "items": {
                    "type": "object",
                    "properties": {
                        "file_name": _text("The name of the file, with that of its folder: <folder>/<file>."),
                        "offset": {
                            "type": "integer",
                            "description": "The line to begin with, counted from 0. Default: the first.",
                        },
                        "length": {
                            "type": "integer",
                            "description": "How many lines to see. Default: all that follow.",
                        },
                    },
                    "required": ["file_name"],
                },
            },
            "close_all_others": {"type": "boolean", "description": "Whether to close all other files. Default: false."},
        },
        ("file_requests",),
    ),
    _builtin(
        files.GREP,
        "letta_files_core",
        "Search the files of your folders for lines that match a regular expression, whatever their case. Shows twenty "
        "matches at a time.",
        {
            "pattern": _text("The regular expression."),
            "include": _text("Only files whose names match this regular expression."),
            "context_lines": {
                "type": "integer",
                "description": "How many lines before and after each match to show. Default: 1.",
            },
            "offset": {"type": "integer", "description": "How many matches to leave out, to see later ones."},
        },
        ("pattern",),
        parallel_safe=True,
    ),
    _builtin(
        files.SEARCH,
        "letta_files_core",
        "Search the files of your folders for passages that are about something, best matches first.",
        {
            "query": _text("What to look for, in your own words."),
            "limit": {"type": "integer", "description": "How many passages to show at most. Default: 5."},
        },
        ("query",),
        parallel_safe=True,
    ),
)
_VOICE: Final = (
    _builtin(
        voice.STORE,
        "letta_voice_sleeptime_core",
        "Keep pieces of the conversation that you were given in archival memory. Lines are counted from 0.",
        {
            "chunks": {
                "type": "array",
                "description": "The pieces to keep.",
                "items": {
                    "type": "object",
                    "properties": {
                        "start_index": {"type": "integer", "description": "The first line of the piece."},
                        "end_index": {"type": "integer", "description": "The last line of the piece."},
                        "context": _text("What the piece is about, so that it can be understood by itself."),
                    },
                    "required": ["start_index", "end_index", "context"],
                },
            }
        },
        ("chunks",),
    ),
    _builtin(
        "rethink_user_memory",
        "letta_voice_sleeptime_core",
        "Rewrite what is remembered of the user: the whole memory block `human`." + _NO_LINE_NUMBERS,
        {"new_memory": _text("The whole new value, with everything that is still true and useful.")},
        ("new_memory",),
    ),
    _builtin(
        "finish_rethinking_memory",
        "letta_voice_sleeptime_core",
        "Say that you have finished rewriting memory.",
        {},
        (),
    ),
    _builtin(
        voice.SEARCH,
        "letta_voice_sleeptime_core",
        "Search archival memory for what the user has just spoken of, and what was said earlier for keywords. Without "
        "keywords it shows what was said last.",
        {
            "convo_keyword_queries": {**_TAGS_LIST, "description": "Keywords, any of which is to be found."},
            "start_minutes_ago": {"type": "integer", "description": "Nothing newer than so many minutes."},
            "end_minutes_ago": {"type": "integer", "description": "Nothing older than so many minutes."},
        },
        (),
    ),
)
TOOLS: Final[dict[str, BuiltinTool]] = dict(
    (
        *_CORE,
        *_ARCHIVAL,
        *_MEMORY,
        *_EDITING,
        *_AGENTS,
        *_CODE,
        *_WEB,
        *_FILES,
        *_VOICE,
    )
)


def sandboxed_source(tool: Tool) -> str:
    """What the sandbox is given for a tool; empty for those that do not run there."""
    if tool.tool_type == "custom":
        return tool.source_code or ""
    shipped = TOOLS.get(tool.name)
    return (shipped.source if shipped else None) or ""
