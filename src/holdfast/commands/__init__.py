"""What the `holdfast` program can do; `cli` parses, and loads only the module that it needs.

`serving` runs the server on `connections`, `processes` runs several of it, `worker` drives runs without serving.
`migrate` prepares the database, `move` copies it into another one, `reseal` rewrites its secrets, `doctor` checks
whether a server can run. All others ask a running server (`server_api`): `remote` lists, shows and changes what it has,
`chat` talks to an agent, `agent_files` and `apply` write files and read them.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from holdfast.settings import Settings

_OPTIONS: Final = {
    "host": "HOLDFAST_HOST",
    "port": "HOLDFAST_PORT",
    "data_dir": "HOLDFAST_DATA_DIR",
    "worker": "HOLDFAST_WORKER",
    "worker_port": "HOLDFAST_WORKER_PORT",
    "processes": "HOLDFAST_PROCESSES",
}


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Settings from the environment, with what was said on the command line on top."""
    given = {name: value for option, name in _OPTIONS.items() if (value := getattr(arguments, option, None))}
    return Settings.from_environment(os.environ | given)
