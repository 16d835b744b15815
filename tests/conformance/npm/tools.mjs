// A tool that every suite of this directory can give to its agents.

export const ROLL = `
def roll(sides: int) -> str:
    """Rolls a die.

    Args:
        sides: how many sides it has
    """
    return f"a {sides} of {sides}"
`;
