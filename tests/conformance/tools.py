"""The tools that the agents of this suite call. The server gets their source text; nothing here runs in place."""

# ruff: noqa: PLC0415 — a tool brings its imports along

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from letta_client import Letta


def print_tool(message: str) -> str:
    """
    Prints a message and gives it back.

    Args:
        message (str): What to print.

    Returns:
        str: The same message.
    """
    print(message)
    return message


def bash_tool(operation: str) -> str:
    """
    Pretends to run a shell command. Somebody has to agree first.

    Args:
        operation (str): The command.

    Returns:
        str: What the command would have printed.
    """
    return f"ran {operation}"


def secret_code(input_text: str) -> str:
    """
    Looks a secret code up. Somebody has to agree first.

    Args:
        input_text (str): Whose code it is.

    Returns:
        str: The code.
    """
    import uuid

    return f"{input_text} {uuid.uuid4().hex}"


def roll_dice(num_sides: int) -> int:
    """
    Rolls a die.

    Args:
        num_sides (int): How many sides it has.

    Returns:
        int: The side that came up.
    """
    import random

    return random.randint(1, num_sides)


def ring_bell(url: str, seconds: float) -> str:
    """
    Tells the given address that it has begun, then takes its time.

    Args:
        url (str): Where to ring.
        seconds (float): How long to take after that.

    Returns:
        str: That it is done.
    """
    import time
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(url, data=b"rung", method="POST"), timeout=60).close()
    time.sleep(seconds)
    return "rung"


def ring_gate(url: str, seconds: float) -> str:
    """
    Rings as the bell does, but somebody has to agree first.

    Args:
        url (str): Where to ring.
        seconds (float): How long to take after that.

    Returns:
        str: That it is done.
    """
    import time
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(url, data=b"rung", method="POST"), timeout=60).close()
    time.sleep(seconds)
    return "rung"


def broken_tool(message: str) -> str:
    """
    Fails, always.

    Args:
        message (str): What to fail with.

    Returns:
        str: Never.
    """
    raise ValueError(message)


def tell(value: str, kind: str) -> Any:
    """
    Gives a value back as the kind of thing that is asked for.

    Args:
        value (str): The value, as text.
        kind (str): str, int or bool.

    Returns:
        Any: The value.
    """
    if kind == "int":
        return int(value)
    if kind == "bool":
        return value == "true"
    return value


GUARDED = (bash_tool, secret_code, ring_gate)
FREE = (print_tool, roll_dice, ring_bell, broken_tool, tell)


def install(client: Letta) -> dict[str, str]:
    """Every tool's id by its name."""
    guarded = {function.__name__: upsert(client, function, default_requires_approval=True) for function in GUARDED}
    free = {function.__name__: upsert(client, function) for function in FREE}
    return guarded | free


def upsert(client: Letta, function: Callable[..., Any], **options: Any) -> str:
    """As the SDK does it; its newest version has left the convenience to the caller."""
    tools: Any = client.tools
    if hasattr(tools, "upsert_from_function"):
        return tools.upsert_from_function(func=function, **options).id
    return tools.upsert(source_code=inspect.getsource(function), **options).id
