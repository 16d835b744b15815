from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core import system_prompt
from holdfast.core.memory import LINE_NUMBER_BANNER, Created, Detached, Edited, MemoryChange, edit
from holdfast.core.records import Agent, Block, ModelChoice
from holdfast.errors import ToolFailed

NOW = 7_000


def block(label: str = "human", value: str = "", **more: Any) -> Block:
    return Block(id=f"block-{label}", label=label, value=value, version=3, **more)


def run(
    tool: str, blocks: Sequence[Block], private: Sequence[str] = (), **arguments: Any
) -> tuple[MemoryChange, list[Block]]:
    made = iter(range(100))
    return edit(tool, arguments, blocks, new_id=lambda: f"new-{next(made)}", now_us=NOW, private_ids=private)


def value_after(tool: str, value: str, **arguments: Any) -> str:
    """The new value of a block, which is also what the model is told."""
    change, (after,) = run(tool, [block(value=value)], label="human", **arguments)
    assert change.returned == after.value
    return after.value


def failure(tool: str, blocks: Sequence[Block], private: Sequence[str] = (), **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as failed:
        run(tool, blocks, private, **arguments)
    return failed.value.message


def values(blocks: Sequence[Block]) -> dict[str, str]:
    return {one.label: one.value for one in blocks}


class TestAnEdit:
    def test_makes_a_new_version_and_leaves_other_blocks_alone(self) -> None:
        other = block("persona", "kind")
        change, after = run("core_memory_append", [block(value="Ann"), other], label="human", content="likes tea")
        edited = msgspec.structs.replace(block(value="Ann\nlikes tea", updated_us=NOW), version=4)
        assert after == [edited, other]
        assert change.operations == (Edited(edited, "human"),)
        assert change.versions() == {"block-human": 3}

    def test_that_changes_nothing_writes_nothing(self) -> None:
        change, after = run("memory_rethink", [block(value="Ann")], label="human", new_memory="Ann")
        assert (change.returned, change.operations, after) == ("Ann", (), [block(value="Ann")])

    def test_of_an_unknown_label_names_the_labels_there_are(self) -> None:
        text = failure("core_memory_append", [block("a"), block("b")], label="c", content="x")
        assert "Block field c does not exist (available sections = a, b)" in text

    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            ("core_memory_append", {"content": "x"}),
            ("core_memory_replace", {"old_content": "a", "new_content": "x"}),
            ("memory_replace", {"old_string": "a", "new_string": "x"}),
            ("memory_insert", {"new_string": "x"}),
            ("memory_rethink", {"new_memory": "x"}),
            ("memory_apply_patch", {"patch": "+x"}),
        ],
    )
    def test_of_a_read_only_block_is_refused(self, tool: str, arguments: dict[str, Any]) -> None:
        text = failure(tool, [block(value="a", read_only=True)], label="human", **arguments)
        assert text == "This block is read-only and cannot be edited."

    def test_beyond_the_limit_is_refused_and_names_length_and_limit(self) -> None:
        text = failure("core_memory_append", [block(value="abc", limit=5)], label="human", content="defg")
        assert "8 characters" in text
        assert "limit of 5" in text

    def test_up_to_the_limit_is_taken(self) -> None:
        _, (after,) = run("core_memory_append", [block(value="abc", limit=5)], label="human", content="d")
        assert after.value == "abc\nd"

    def test_may_shorten_a_value_that_is_over_its_limit_already(self) -> None:
        long = block(value="one two three", limit=5)
        _, (after,) = run("memory_replace", [long], label="human", old_string=" three", new_string="")
        assert after.value == "one two"

    def test_strips_the_null_characters_that_no_database_keeps(self) -> None:
        assert value_after("memory_rethink", "", new_memory="a\0b") == "ab"

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ({"label": "human"}, "missing required field `content`"),
            ({"label": "human", "content": 3}, "Expected `str`, got `int`"),
            ({"label": "human", "content": "x", "line": 3}, "unknown field `line`"),
        ],
    )
    def test_with_arguments_that_do_not_fit_says_why(self, arguments: dict[str, Any], why: str) -> None:
        assert why in failure("core_memory_append", [block()], **arguments)


class TestCoreMemoryTools:
    def test_append_adds_a_line_even_to_an_empty_block(self) -> None:
        assert value_after("core_memory_append", "", content="tea") == "\ntea"

    def test_replace_replaces_every_occurrence(self) -> None:
        assert value_after("core_memory_replace", "tea, tea", old_content="tea", new_content="milk") == "milk, milk"

    def test_replace_of_missing_text_quotes_it(self) -> None:
        text = failure("core_memory_replace", [block(value="x")], label="human", old_content="tea", new_content="")
        assert text == "Old content 'tea' not found in memory block 'human'"

    def test_long_missing_text_is_quoted_in_part_so_that_the_reason_stays_visible(self) -> None:
        text = failure("core_memory_replace", [block()], label="human", old_content="t" * 5_000, new_content="")
        assert len(text) < 400
        assert text.endswith("not found in memory block 'human'")

    def test_replace_of_nothing_is_refused(self) -> None:
        text = failure("core_memory_replace", [block(value="x")], label="human", old_content="", new_content="y")
        assert "old_content is empty" in text

    @pytest.mark.parametrize("tool", ["memory_finish_edits", "finish_rethinking_memory"])
    def test_finishing_edits_does_nothing(self, tool: str) -> None:
        change, after = run(tool, [block()])
        assert (change, after) == (MemoryChange("None"), [block()])

    def test_what_is_known_of_the_user_is_the_block_human(self) -> None:
        change, after = run("rethink_user_memory", [block("persona", "x"), block(value="Ann")], new_memory="Ada")
        assert (change.returned, values(after)) == ("Ada", {"persona": "x", "human": "Ada"})
        assert "Block field human does not exist" in failure("rethink_user_memory", [block("a")], new_memory="Ada")


class TestMemoryReplace:
    def test_replaces_the_one_occurrence(self) -> None:
        assert value_after("memory_replace", "a\nb\nc", old_string="b\nc", new_string="d") == "a\nd"

    def test_deletes_with_an_empty_string(self) -> None:
        assert value_after("memory_replace", "Bob Ann", old_string="Bob ", new_string="") == "Ann"

    def test_fills_an_empty_block_when_asked_to_replace_nothing(self) -> None:
        assert value_after("memory_replace", "", old_string="", new_string="Ann") == "Ann"

    def test_refuses_to_replace_nothing_in_a_block_with_text(self) -> None:
        text = failure("memory_replace", [block(value="a")], label="human", old_string="", new_string="x")
        assert "old_string is empty" in text

    def test_of_text_that_is_not_there(self) -> None:
        text = failure("memory_replace", [block(value="a")], label="human", old_string="b", new_string="x")
        assert "did not appear verbatim in memory block with label `human`" in text

    def test_of_text_that_is_there_twice_names_the_lines(self) -> None:
        text = failure("memory_replace", [block(value="a\nb a\nc\na")], label="human", old_string="a", new_string="x")
        assert "Multiple occurrences of old_string `a` in lines [1, 2, 4]" in text

    def test_leaves_tabs_alone_when_the_text_is_found_as_it_stands(self) -> None:
        assert value_after("memory_replace", "a\tb\n\tc", old_string="a\tb", new_string="d\te") == "d\te\n\tc"

    def test_finds_text_with_tabs_that_the_model_wrote_as_spaces(self) -> None:
        assert value_after("memory_replace", "\tname", old_string="        name", new_string="\tAnn") == "        Ann"


class TestMemoryInsert:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [(0, "x\na\nb"), (1, "a\nx\nb"), (2, "a\nb\nx"), (-1, "a\nb\nx"), (None, "a\nb\nx"), ("1", "a\nx\nb")],
    )
    def test_inserts_whole_lines(self, line: Any, expected: str) -> None:
        assert value_after("memory_insert", "a\nb", new_string="x", insert_line=line) == expected

    def test_inserts_at_the_end_by_default(self) -> None:
        assert value_after("memory_insert", "a", new_string="x") == "a\nx"

    def test_an_empty_block_gets_the_text_and_no_empty_line(self) -> None:
        assert value_after("memory_insert", "", new_string="x") == "x"

    @pytest.mark.parametrize("line", [-2, 3])
    def test_outside_the_block_is_refused(self, line: int) -> None:
        text = failure("memory_insert", [block(value="a\nb")], label="human", new_string="x", insert_line=line)
        assert f"Invalid `insert_line` parameter: {line}" in text


class TestLineNumbers:
    @pytest.mark.parametrize(
        ("tool", "arguments", "culprit"),
        [
            ("memory_replace", {"old_string": "1→ a", "new_string": "b"}, "old_string"),
            ("memory_replace", {"old_string": "a", "new_string": "b\n12→ c"}, "new_string"),
            ("memory_insert", {"new_string": "1→ x"}, "new_string"),
            ("memory_insert", {"new_string": LINE_NUMBER_BANNER}, "new_string"),
            ("memory_rethink", {"new_memory": "  3→ x"}, "new_memory"),
            ("memory_apply_patch", {"patch": "-1→ a\n+b"}, "patch"),
        ],
    )
    def test_are_refused(self, tool: str, arguments: dict[str, Any], culprit: str) -> None:
        text = failure(tool, [block(value="a")], label="human", **arguments)
        assert text.startswith(f"{culprit} contains a line number prefix, which is not allowed")

    @pytest.mark.parametrize(
        "arguments",
        [
            {"command": "str_replace", "old_string": "1→ a", "new_string": ""},
            {"command": "insert", "insert_text": "1→ a"},
        ],
    )
    def test_are_refused_in_commands_too(self, arguments: dict[str, Any]) -> None:
        text = failure("memory", [block(value="a")], path="human", **arguments)
        assert "contains a line number prefix, which is not allowed" in text

    def test_an_arrow_within_a_line_is_ordinary_text(self) -> None:
        assert value_after("memory_insert", "", new_string="Oslo 1→ Rome") == "Oslo 1→ Rome"

    def test_the_banner_that_is_refused_is_the_one_that_the_prompt_shows(self) -> None:
        model = ModelChoice(handle="anthropic/claude", context_window=1_000)
        agent = Agent(id="agent-1", name="a", agent_type="letta_v1_agent", system="", model=model)
        shown = system_prompt.compile_system(
            agent, [block(value="a")], conversation_id=None, recompiled_at_text="", previous_messages=0
        )
        assert LINE_NUMBER_BANNER in shown


class TestAPatchOfOneBlock:
    def test_replaces_lines_found_by_their_context(self) -> None:
        assert value_after("memory_apply_patch", "a\nb\nc", patch="@@\n a\n-b\n+x\n+y\n c") == "a\nx\ny\nc"

    def test_may_have_several_hunks_each_seeing_what_the_former_did(self) -> None:
        patch = "@@ first\n-a\n+x\n\n@@ second\n x\n+y\n"
        assert value_after("memory_apply_patch", "a\nb", patch=patch) == "x\ny\nb"

    def test_that_only_adds_goes_to_the_end(self) -> None:
        assert value_after("memory_apply_patch", "a", patch="+x\n+y") == "a\nx\ny"
        assert value_after("memory_apply_patch", "", patch="+x") == "x"

    def test_may_remove_every_line(self) -> None:
        assert value_after("memory_apply_patch", "a\nb", patch="-a\n-b") == ""

    def test_takes_an_empty_line_as_empty_context(self) -> None:
        assert value_after("memory_apply_patch", "a\n\nb", patch=" a\n\n-b\n+c") == "a\n\nc"

    def test_may_come_as_a_unified_diff(self) -> None:
        patch = "--- human\n+++ human\n@@ -1,2 +1,2 @@\n-a\n+x\n b\n\\ No newline at end of file"
        assert value_after("memory_apply_patch", "a\nb", patch=patch) == "x\nb"

    def test_may_be_wrapped_in_begin_and_end(self) -> None:
        assert value_after("memory_apply_patch", "a", patch="*** Begin Patch\n-a\n+b\n*** End Patch\n") == "b"

    def test_whose_context_is_missing_is_refused(self) -> None:
        text = failure("memory_apply_patch", [block(value="a")], label="human", patch="@@\n-a\n+b\n@@\n-q\n+r")
        assert "Hunk 2 of the patch does not match" in text
        assert "'q'" in text

    def test_whose_context_occurs_twice_is_refused(self) -> None:
        text = failure("memory_apply_patch", [block(value="a\nb\na")], label="human", patch="-a\n+x")
        assert "Hunk 1 of the patch matches in lines [1, 3]" in text

    def test_with_an_unmarked_line_is_refused(self) -> None:
        text = failure("memory_apply_patch", [block(value="a")], label="human", patch="a\n+b")
        assert "must begin with" in text

    @pytest.mark.parametrize("patch", ["", "@@\n", "\n\n"])
    def test_that_is_empty_is_refused(self, patch: str) -> None:
        assert "The patch is empty" in failure("memory_apply_patch", [block()], label="human", patch=patch)

    def test_needs_to_be_told_which_block(self) -> None:
        assert "label is required" in failure("memory_apply_patch", [block()], patch="+x")


class TestAPatchOfSeveralBlocks:
    def test_adds_deletes_updates_and_renames(self) -> None:
        patch = (
            "*** Begin Patch\n"
            "*** Add Block: tasks\nDescription: What is to be done\n+one\n+two\n\n"
            "*** Delete Block: old\n"
            "*** Update Block: human\n*** Move to: user\n@@\n-Ann\n+Bea\n"
            "*** Update Block: persona\n@@\n+kind\n"
            "*** End Patch"
        )
        blocks = [block("human", "Ann"), block("old", "x"), block("persona")]
        change, after = run("memory_apply_patch", blocks, label="ignored", patch=patch)
        assert values(after) == {"user": "Bea", "persona": "kind", "tasks": "one\ntwo"}
        assert after[-1].description == "What is to be done"
        assert change.returned.splitlines() == [
            "- Added block 'tasks'",
            "- Deleted block 'old'",
            "- Updated block 'human' and renamed it to 'user'",
            "- Updated block 'persona'",
        ]
        assert change.versions() == {"block-human": 3, "block-old": 3, "block-persona": 3}

    def test_may_only_rename(self) -> None:
        change, (after,) = run("memory_apply_patch", [block()], patch="*** Update Block: human\n*** Move to: user")
        assert after.label == "user"
        edited = Edited(after, "human")
        assert change.operations == (edited,)
        assert edited.renamed

    def test_may_add_lines_without_a_mark_and_without_a_description(self) -> None:
        _, (after,) = run("memory_apply_patch", [], patch="*** Add Block: tasks\none\n+two")
        assert (after.value, after.description) == ("one\ntwo", None)

    def test_may_add_an_empty_block(self) -> None:
        _, (after,) = run("memory_apply_patch", [], patch="*** Add Block: tasks")
        assert after.value == ""

    def test_may_use_a_label_that_it_has_just_set_free(self) -> None:
        patch = "*** Delete Block: b\n*** Update Block: a\n*** Move to: b\n*** Add Block: a\n+new"
        _, after = run("memory_apply_patch", [block("a", "1"), block("b", "2")], patch=patch)
        assert values(after) == {"b": "1", "a": "new"}

    def test_may_work_on_a_block_that_it_has_just_added(self) -> None:
        patch = "*** Add Block: a\n+1\n*** Update Block: a\n-1\n+2\n*** Delete Block: a"
        change, after = run("memory_apply_patch", [], patch=patch)
        assert after == []
        assert [type(operation) for operation in change.operations] == [Created, Edited, Detached]
        assert change.versions() == {}

    @pytest.mark.parametrize(
        ("patch", "why"),
        [
            ("*** Add Block: human\n+x", "already exists"),
            ("*** Add Block: \n+x", "needs a label"),
            (f"*** Add Block: {'x' * 513}\n+x", "513 characters is too long; the limit is 512"),
            ("*** Delete Block: nobody", "Block field nobody does not exist"),
            ("*** Delete Block: human\n-x", "must not be followed"),
            ("*** Update Block: human", "changes nothing"),
            ("*** Update Block: human\n*** Move to: persona", "already exists"),
            ("*** Update Block: fixed\n+x", "read-only"),
            ("*** Delete Block: fixed", "read-only"),
            ("stray\n*** Delete Block: human", "lines before its first"),
        ],
    )
    def test_that_fails_anywhere_does_nothing_at_all(self, patch: str, why: str) -> None:
        blocks = [block("human", "Ann"), block("persona"), block("fixed", read_only=True)]
        assert why in failure("memory_apply_patch", blocks, patch=f"{patch}\n*** Add Block: more\n+x")
        assert values(blocks) == {"human": "Ann", "persona": "", "fixed": ""}


class TestTheMemoryCommand:
    def test_create_makes_a_block(self) -> None:
        change, (after,) = run("memory", [], command="create", path="/memories/tasks", description="d", file_text="one")
        expected = Block(id="new-0", label="tasks", value="one", description="d", created_us=NOW, updated_us=NOW)
        assert after == expected
        assert change.operations == (Created(expected),)
        assert "'tasks'" in change.returned

    def test_create_needs_no_text(self) -> None:
        _, (after,) = run("memory", [], command="create", path="tasks", description="d")
        assert after.value == ""

    def test_create_refuses_a_label_that_is_taken(self) -> None:
        assert "already exists" in failure("memory", [block()], command="create", path="human", description="d")

    def test_create_keeps_to_the_limit_of_new_blocks(self) -> None:
        text = failure("memory", [], command="create", path="a", description="d", file_text="x" * 100_001)
        assert "100001 characters" in text

    def test_str_replace_edits_as_memory_replace_does(self) -> None:
        change, (after,) = run(
            "memory", [block(value="a b")], command="str_replace", path="/memories/human", old_string="b", new_string=""
        )
        assert change.returned == after.value == "a "

    @pytest.mark.parametrize(("line", "expected"), [(None, "a\nb\nx"), (0, "x\na\nb"), (-1, "a\nb\nx")])
    def test_insert_defaults_to_the_end(self, line: int | None, expected: str) -> None:
        _, (after,) = run(
            "memory", [block(value="a\nb")], command="insert", path="/human", insert_text="x", insert_line=line
        )
        assert after.value == expected

    def test_delete_detaches(self) -> None:
        change, after = run("memory", [block()], command="delete", path="human")
        assert (change.operations, after) == ((Detached(block()),), [])

    def test_rename_changes_the_label(self) -> None:
        change, (after,) = run("memory", [block()], command="rename", old_path="human", new_path="/memories/user")
        assert (after.label, change.returned) == ("user", "Renamed memory block 'human' to 'user'")

    def test_rename_to_the_same_label_does_nothing(self) -> None:
        change, _ = run("memory", [block()], command="rename", old_path="human", new_path="human")
        assert change.operations == ()

    def test_rename_with_path_and_description_changes_the_description(self) -> None:
        _, (after,) = run("memory", [block()], command="rename", path="human", description="who they are")
        assert (after.label, after.description) == ("human", "who they are")

    def test_a_label_may_hold_slashes(self) -> None:
        slashed = Block(id="b", label="/memories/odd", value="a")
        _, (after,) = run("memory", [slashed], command="insert", path="/memories/odd", insert_text="x")
        assert after.value == "a\nx"

    @pytest.mark.parametrize(
        ("command", "given", "missing"),
        [
            ("create", {}, "path"),
            ("create", {"path": "x"}, "description"),
            ("str_replace", {"path": "human"}, "old_string"),
            ("str_replace", {"path": "human", "old_string": "a"}, "new_string"),
            ("insert", {"path": "human"}, "insert_text"),
            ("delete", {}, "path"),
            ("rename", {}, "old_path"),
            ("rename", {"path": "human"}, "old_path"),
            ("rename", {"old_path": "human"}, "new_path"),
        ],
    )
    def test_a_missing_argument_is_named(self, command: str, given: dict[str, Any], missing: str) -> None:
        text = failure("memory", [block()], command=command, **given)
        assert text == f"Error: {missing} is required for {command} command"

    def test_an_unknown_command_is_refused(self) -> None:
        assert "unknown command 'view'" in failure("memory", [], command="view")


class TestAConversationsOwnCopy:
    def test_can_be_edited(self) -> None:
        change, _ = run("memory_insert", [block()], ["block-human"], label="human", new_string="x")
        assert change.versions() == {"block-human": 3}

    def test_can_be_neither_deleted_nor_renamed(self) -> None:
        private = ["block-human"]
        assert "not deleted" in failure("memory", [block()], private, command="delete", path="human")
        assert "not renamed" in failure("memory", [block()], private, command="rename", old_path="human", new_path="b")
