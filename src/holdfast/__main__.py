"""`python -m holdfast`: the command line, where the script is not on the path."""

from __future__ import annotations

import sys

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
