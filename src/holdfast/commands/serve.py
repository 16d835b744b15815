from __future__ import annotations

import argparse

from holdfast.commands.configured import settings_from
from holdfast.commands.serving import serve
from holdfast.wiring import build


def run(arguments: argparse.Namespace) -> int:
    serve(settings_from(arguments), build)
    return 0
