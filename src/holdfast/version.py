from importlib.metadata import version
from typing import Final

VERSION: Final = version("holdfast")
