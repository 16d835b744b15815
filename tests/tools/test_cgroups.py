"""Which cgroup is divided and which is left alone, and what a cgroup tells, on files that imitate the kernel's.

What the kernel does with them is shown by `make test-cgroups`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.tools.sandbox import cgroup_setup, cgroups, launch, linux
from holdfast.tools.sandbox.contract import CallsCgroup, EgressConfig, EndReason, IsolationLayers, Limits

MOUNT = "35 25 0:30 {root} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = """24 29 0:22 / /proc rw,nosuid shared:12 - proc proc rw
41 32 0:36 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory
"""


def imitate(base: Path, *, controllers: str = "cpu memory pids", procs: str = "", is_root: bool = False) -> Path:
    base.mkdir(parents=True)
    (base / "cgroup.controllers").write_text(controllers)
    (base / "cgroup.procs").write_text(procs)
    (base / "cgroup.subtree_control").write_text("")
    if not is_root:
        (base / "cgroup.type").write_text("domain\n")
    return base


@pytest.mark.parametrize(
    ("membership", "root", "point", "expected"),
    [
        ("0::/unit.service\n", "/", "/sys/fs/cgroup", "/sys/fs/cgroup/unit.service"),
        ("0::/\n", "/", "/sys/fs/cgroup", "/sys/fs/cgroup"),
        ("9:memory:/other\n0::/user.slice/a\n", "/", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/user.slice/a"),
        ("0::/docker/abc/inner\n", "/docker/abc", "/sys/fs/cgroup", "/sys/fs/cgroup/inner"),
    ],
    ids=["a unit", "the root", "beside version 1", "a part is mounted"],
)
def test_our_own_cgroup_is_found_below_its_mount(membership: str, root: str, point: str, expected: str) -> None:
    mounts = OTHERS + MOUNT.format(root=root, point=point)
    assert cgroup_setup.own_directory(membership, mounts) == Path(expected)


@pytest.mark.parametrize(
    ("membership", "mounts"),
    [
        ("0::/unit\n", OTHERS),
        ("9:memory:/unit\n", OTHERS + MOUNT.format(root="/", point="/sys/fs/cgroup")),
        ("0::/../elsewhere\n", OTHERS + MOUNT.format(root="/docker/abc", point="/sys/fs/cgroup")),
    ],
    ids=["not mounted", "only version 1", "mounted elsewhere"],
)
def test_where_our_cgroup_cannot_be_seen_there_is_none(membership: str, mounts: str) -> None:
    with pytest.raises(FileNotFoundError):
        cgroup_setup.own_directory(membership, mounts)


def test_a_cgroup_with_nobody_but_us_is_ours(tmp_path: Path) -> None:
    own = imitate(tmp_path / "unit", procs=f"{os.getpid()}\n")
    assert cgroup_setup.delegated(own) == own


def test_from_the_leaf_that_we_made_for_ourselves_the_cgroup_around_it_is_ours(tmp_path: Path) -> None:
    own = imitate(tmp_path / "unit")
    assert cgroup_setup.delegated(own / cgroup_setup.LEAF) == own


def test_a_cgroup_with_other_processes_is_left_alone(tmp_path: Path) -> None:
    own = imitate(tmp_path / "session", procs=f"{os.getpid()}\n{os.getppid()}\n")
    with pytest.raises(PermissionError, match="other processes"):
        cgroup_setup.delegated(own)
    assert not [entry for entry in own.iterdir() if entry.is_dir()]


def test_a_process_that_our_namespace_does_not_see_is_another(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="other processes"):
        cgroup_setup.delegated(imitate(tmp_path / "session", procs=f"{os.getpid()}\n0\n"))


def test_the_root_of_the_hierarchy_may_have_other_processes(tmp_path: Path) -> None:
    own = imitate(tmp_path / "root", procs=f"{os.getpid()}\n{os.getppid()}\n", is_root=True)
    assert cgroup_setup.delegated(own) == own


@pytest.mark.parametrize("controllers", ["", "cpu memory", "pids"])
def test_without_both_controllers_there_is_nothing_to_use(tmp_path: Path, controllers: str) -> None:
    with pytest.raises(PermissionError, match="no controllers for"):
        cgroup_setup.delegated(imitate(tmp_path / "unit", controllers=controllers))


@pytest.mark.parametrize(
    ("events", "oom_before", "oom_after", "expected"),
    [
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n", 0, 0, None),
        ("low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", 0, 1, None),
        ("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n", 0, 0, "memory"),
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 3\noom_group_kill 1\n", 1, 2, "all_memory"),
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 3\noom_group_kill 1\n", 1, 1, None),
    ],
    ids=["nothing", "it made room", "its own limit", "that of all calls", "the machine's"],
)
def test_the_kernel_tells_which_limit_on_memory_a_call_was_ended_for(
    tmp_path: Path, events: str, oom_before: int, oom_after: int, expected: EndReason | None
) -> None:
    local = tmp_path / "memory.events.local"
    local.write_text(f"oom {oom_before}\n")
    cgroup = imitated_call(tmp_path)
    local.write_text(f"oom {oom_after}\n")
    (tmp_path / "7" / "memory.events").write_text(events)
    assert cgroup.killed_for() == expected


def test_a_call_is_known_to_have_been_refused_a_process(tmp_path: Path) -> None:
    cgroup = imitated_call(tmp_path)
    (tmp_path / "7" / "pids.events").write_text("max 0\n")
    assert not cgroup.was_refused_a_process()
    (tmp_path / "7" / "pids.events").write_text("max 3\n")
    assert cgroup.was_refused_a_process()


def test_the_limits_of_a_call_are_written_to_its_cgroup(tmp_path: Path) -> None:
    imitated_call(tmp_path)
    written = {file.name: file.read_text() for file in (tmp_path / "7").iterdir()}
    assert written == {"memory.max": "1000", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "5"}


def test_a_cgroup_that_the_kernel_does_not_let_go_yet_is_removed_with_the_next(tmp_path: Path) -> None:
    cgroup = imitated_call(tmp_path)
    busy, calls = tmp_path / "7", cgroup._calls
    cgroup.remove()
    assert busy.exists()  # a directory with files in it cannot be removed, like a cgroup with a process in it
    for file in busy.iterdir():
        file.unlink()
    calls.remove("8")
    assert not busy.exists()


def test_bubblewrap_makes_no_cgroup_namespace_from_which_calls_cannot_be_put_into_their_cgroups() -> None:
    def command(cgroup: CallsCgroup | None) -> list[str]:
        config = launch.configure(Limits(), IsolationLayers(), {}, None, (), EgressConfig(), cgroup)
        return launch.bubblewrap_command("bwrap", config)

    assert "--unshare-cgroup-try" in command(None)
    assert "--unshare-cgroup-try" not in command(CallsCgroup("/sys/fs/cgroup/calls", 9))


@pytest.mark.parametrize(
    ("name", "expected"), [("6.1.0-54-amd64", (6, 1)), ("6.14-rc3", (6, 14)), ("5.15.167.4-standard", (5, 15))]
)
def test_the_version_of_the_kernel_is_read_from_its_name(
    name: str, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", name, "#1", "x86_64")))
    assert linux.release() == expected


def imitated_call(calls: Path) -> cgroups.Cgroup:
    (calls / "7").mkdir()
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max"):
        (calls / "7" / name).touch()
    limits = Limits(memory_bytes=1_000, processes=5)
    return cgroups.Cgroup(cgroups.Calls(os.open(calls, os.O_RDONLY), limits), "7", limits)
