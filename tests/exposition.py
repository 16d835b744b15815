"""Reads Prometheus's text format, version 0.0.4, and refuses what does not follow it."""

from __future__ import annotations

import re

_LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def parsed(text: str) -> dict[str, float]:
    """Samples by name and labels, such as `up{process="0"}`. The labels are in the order of their names."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    described: set[str] = set()
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "#":
            what, name, said = rest.split(" ", 2)
            assert said
            if what == "HELP":
                assert name not in described, f"{name} is described twice"
                described.add(name)
            else:
                assert what == "TYPE"
                kinds[name] = said
            continue
        matched = _LINE.fullmatch(line)
        assert matched, line
        name, labels, value = matched.groups()
        assert any(name == family + end for family, kind in kinds.items() for end in _SUFFIXES[kind]), line
        shown = ",".join(f'{label}="{said}"' for label, said in sorted(_LABEL.findall(labels)))
        assert f"{name}{{{shown}}}" not in found, line
        found[f"{name}{{{shown}}}"] = float(value)
    assert kinds.keys() == described
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")
    return found
