from __future__ import annotations

import argparse

from holdfast.version import VERSION


def run(arguments: argparse.Namespace) -> int:
    print(VERSION)
    return 0
