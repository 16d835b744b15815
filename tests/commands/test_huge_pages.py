from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from holdfast.commands import huge_pages

_FILLED = """\
{start:x}-{end:x} {how} 00000000 00:00 0 {name}
Size:               {size} kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                {resident} kB
Pss:                   0 kB
VmFlags: rd wr mr mw me ac
"""
MB = 1024 * 1024


def mapped(start_mb: float, end_mb: float, *, how: str = "rw-p", name: str = "", used: float = 1.0) -> str:
    size = round((end_mb - start_mb) * 1024)
    return _FILLED.format(
        start=round(start_mb * MB), end=round(end_mb * MB), how=how, name=name, size=size, resident=round(size * used)
    )


def test_whole_pages_are_taken_from_what_is_in_use() -> None:
    maps = mapped(101, 107.5) + mapped(200, 204, name="[heap]")
    assert list(huge_pages.filled(maps)) == [(102 * MB, 106 * MB), (200 * MB, 204 * MB)]


def test_stacks_and_what_is_not_written_are_left_alone() -> None:
    maps = mapped(100, 108, used=0.01) + mapped(200, 208, how="r--p") + mapped(300, 308, name="[stack]")
    file = mapped(400, 408).replace("00:00 0 ", "fe:00 1234 /usr/lib/libsomething.so")
    assert list(huge_pages.filled(maps + file + mapped(501, 502))) == []


def test_an_administrator_who_wants_none_gets_none(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    assert huge_pages.use(setting) == 0


def test_a_system_without_them_is_left_as_it_is(tmp_path: Path) -> None:
    assert huge_pages.use(tmp_path / "enabled") == 0


def test_what_was_loaded_moves_into_them() -> None:
    """In a process of its own: pages stay as they are made. A kernel that cannot do it at once does it later."""
    program = (
        "from holdfast.commands import huge_pages\n"
        "loaded = [str(number) * 3 for number in range(300_000)]\n"
        "print(huge_pages.use())\n"
        "print(open('/proc/self/smaps_rollup').read())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    made = int(told.stdout.partition("\n")[0])
    in_them_kb = int(told.stdout.partition("AnonHugePages:")[2].split()[0])
    assert in_them_kb >= made * 2048
    assert made > 0 or not _can_do_it_at_once()


def _can_do_it_at_once() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    version = tuple(int(number) for number in platform.release().split(".")[:2])
    return setting.exists() and "[never]" not in setting.read_text() and version >= (6, 1)
