"""Runs the suites of the npm clients, and of what is built on them, against a server of its own.

Not part of `make test`, which needs no network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.serving import ServerProcess

HERE = Path(__file__).parent
LIMIT_S = 300


def main() -> int:
    if not shutil.which("node") or not shutil.which("npm"):
        print("node and npm are needed for this suite, and were not found.", file=sys.stderr)
        return 1
    # No lock file: it would name a registry. Versions are bounded in package.json.
    subprocess.run(
        ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"], cwd=HERE, check=True, timeout=LIMIT_S
    )
    with tempfile.TemporaryDirectory() as data_dir, ServerProcess(Path(data_dir)) as server:
        done = subprocess.run(
            ["node", "--test", *sorted(path.name for path in HERE.glob("*.test.mjs"))],
            cwd=HERE,
            env=os.environ | {"HOLDFAST_URL": server.url},
            timeout=LIMIT_S,
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
