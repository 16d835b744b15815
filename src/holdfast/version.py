from importlib.metadata import version
from typing import Final

VERSION: Final = version("holdfast")
# Clients of the retired server ask for at least some version of it; this is its last.
API_VERSION: Final = "0.16.8"
