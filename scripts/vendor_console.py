"""Fetches the console's libraries from their npm packages: `python scripts/vendor_console.py [--check]`.

Each file is checked against the hash below before it is written. Bare imports become relative ones, because the console
has no build step and its content security policy allows no import map. `--check` only compares what is there.
To take a newer version: change it below, run the script, and copy the hash that it prints after reading what changed.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).parents[1] / "src" / "holdfast" / "console" / "vendor"


class Vendored(NamedTuple):
    package: str
    version: str
    path: str  # inside the package
    name: str  # in vendor/
    sha256: str
    exported: str = ""  # what a minified script leaves as a global, and a module has to export


FILES = (
    Vendored(
        "preact",
        "11.2.0",
        "dist/preact.mjs",
        "preact.mjs",
        "bdcbd9abdf2c77c5c45326eab42191e949222d479d0d5f69467387a77040cb55",
    ),
    Vendored(
        "preact",
        "11.2.0",
        "hooks/dist/hooks.mjs",
        "hooks.mjs",
        "e862ab2973aa6455eaa0f77c5d832d2157d6be59a17c8ba546550a575b58c6b4",
    ),
    Vendored(
        "preact",
        "11.2.0",
        "LICENSE",
        "LICENSE-preact",
        "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    ),
    Vendored(
        "htm", "3.1.1", "dist/htm.mjs", "htm.mjs", "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4"
    ),
    Vendored(
        "htm", "3.1.1", "LICENSE", "LICENSE-htm", "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f"
    ),
    Vendored(
        "@preact/signals",
        "2.11.4",
        "dist/signals.mjs",
        "signals.mjs",
        "ba8177597f45acaca4d05dcf3966b527d0a8264cfa2b0a87ace92dff324217f8",
    ),
    Vendored(
        "@preact/signals-core",
        "1.14.5",
        "dist/signals-core.mjs",
        "signals-core.mjs",
        "0c80bc127d72ecb1496ef116ffddae75079829a3af01e7f417c8e5a6474c68b6",
    ),
    Vendored(
        "@preact/signals-core",
        "1.14.5",
        "LICENSE",
        "LICENSE-signals",
        "a11fc89e4c6b118854c7a667734a0b2e6bf2af5e45c6686de31adbccc8f3ae8d",
    ),
    Vendored(
        "marked",
        "18.2.0",
        "lib/marked.esm.js",
        "marked.mjs",
        "162194ea902a9d6eca6011bb42b5732991ca650e017d0375b76f4204810c6c14",
    ),
    Vendored(
        "marked",
        "18.2.0",
        "LICENSE",
        "LICENSE-marked",
        "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c",
    ),
    Vendored(
        "dompurify",
        "3.4.17",
        "dist/purify.min.js",
        "purify.mjs",
        "cd37898f9782adf54820c413191b5691803f0f137c799d6edcfd38523b4c2c31",
        "globalThis.DOMPurify",
    ),
    Vendored(
        "dompurify",
        "3.4.17",
        "LICENSE",
        "LICENSE-dompurify",
        "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
    ),
    Vendored(
        "uplot",
        "1.6.32",
        "dist/uPlot.iife.min.js",
        "uplot.mjs",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot",
    ),
    Vendored(
        "uplot",
        "1.6.32",
        "dist/uPlot.min.css",
        "uplot.css",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    Vendored(
        "uplot",
        "1.6.32",
        "LICENSE",
        "LICENSE-uplot",
        "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    ),
)
_LOCAL = {
    "preact": "./preact.mjs",
    "preact/hooks": "./hooks.mjs",
    "@preact/signals-core": "./signals-core.mjs",
}
_IMPORT = re.compile(r"""(from\s*)(["'])([^"']+)\2""")
_SOURCE_MAP = re.compile(r"\n//# sourceMappingURL=.*\s*$")


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    if arguments and not check:
        print("usage: vendor_console.py [--check]", file=sys.stderr)
        return 2
    TARGET.mkdir(parents=True, exist_ok=True)
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        archives: dict[str, Path] = {}
        for file in FILES:
            spec = f"{file.package}@{file.version}"
            if spec not in archives:
                archives[spec] = fetch(spec, Path(scratch))
            content = read(archives[spec], file.path)
            found = hashlib.sha256(content).hexdigest()
            if found != file.sha256:
                print(f"{spec} {file.path} has the hash {found}, not {file.sha256}: nothing was written for it")
                failures += 1
                continue
            written, place = localised(content, file), TARGET / file.name
            if check and (not place.exists() or place.read_bytes() != written):
                print(f"vendor/{file.name} differs from {spec}")
                failures += 1
            elif not check:
                place.write_bytes(written)
    return 1 if failures else 0


def fetch(spec: str, scratch: Path) -> Path:
    packed = subprocess.run(
        ["npm", "pack", "--silent", "--ignore-scripts", spec], cwd=scratch, check=True, capture_output=True, text=True
    )
    return scratch / packed.stdout.strip().splitlines()[-1]


def read(archive: Path, path: str) -> bytes:
    with tarfile.open(archive) as packed:
        member = packed.extractfile(f"package/{path}")
        assert member is not None, f"{archive.name} has no {path}"
        return member.read()


def localised(content: bytes, file: Vendored) -> bytes:
    if not file.name.endswith(".mjs"):
        return content
    text = _IMPORT.sub(
        lambda found: f"{found[1]}{found[2]}{_LOCAL.get(found[3], found[3])}{found[2]}", content.decode()
    )
    exports = f"\nexport default {file.exported};" if file.exported else ""
    return (_SOURCE_MAP.sub("", text).rstrip() + exports + "\n").encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
