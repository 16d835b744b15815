"""`holdfast completion SHELL`: what a shell needs to complete commands and options, made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

from holdfast.cli_arguments import build_parser

Words = dict[str, list[str]]  # what may follow these words


def run(arguments: argparse.Namespace) -> int:
    words = dict(_walk(build_parser()[0], ""))
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](words), end="")
    return 0


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[str]]]:
    options = [
        option for action in parser._actions for option in action.option_strings if action.help != argparse.SUPPRESS
    ]
    deeper = [
        cast("Any", action).choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    below: dict[str, argparse.ArgumentParser] = {name: one for choices in deeper for name, one in choices.items()}
    yield path, [*below, *options]
    for name, one in below.items():
        yield from _walk(one, f"{path} {name}".strip())


def _cases(words: Words) -> str:
    return "".join(f'        "{path}") words="{" ".join(given)}" ;;\n' for path, given in words.items())


def _bash(words: Words) -> str:
    return f"""\
# bash: eval "$(holdfast completion bash)", for example in ~/.bashrc
_holdfast() {{
    local path="" words="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$word" in -*) ;; *) path="${{path:+$path }}$word" ;; esac
    done
    case "$path" in
{_cases(words)}    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _holdfast holdfast
"""


def _zsh(words: Words) -> str:
    """Which understands bash's completions when it is told to."""
    head = '# zsh: eval "$(holdfast completion zsh)", for example in ~/.zshrc'
    return f"{head}\nautoload -U +X bashcompinit && bashcompinit\n{_bash(words).partition(chr(10))[2]}"


def _fish(words: Words) -> str:
    lines = ["# fish: holdfast completion fish | source, for example in ~/.config/fish/config.fish"]
    for path, given in words.items():
        condition = f"__fish_seen_subcommand_from {path.split()[-1]}" if path else "__fish_use_subcommand"
        plain = " ".join(word for word in given if not word.startswith("-"))
        lines += [f"complete -c holdfast -n '{condition}' -f -a '{plain}'"] if plain else []
        lines += [f"complete -c holdfast -n '{condition}' -l {word[2:]}" for word in given if word.startswith("--")]
    return "\n".join(lines) + "\n"
