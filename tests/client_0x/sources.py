"""Tools as users write them."""

from __future__ import annotations

ROLL = '''
def roll(sides: int) -> str:
    """Roll a die.

    Args:
        sides (int): how many sides it has
    """
    return f"a {sides} of {sides}"
'''
FLIP = '''
def flip(times: int) -> str:
    """Flip a coin.

    Args:
        times (int): how often
    """
    return "heads " * times
'''
