"""Metrics as Prometheus reads them: its text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Sample(msgspec.Struct, frozen=True):
    value: float
    labels: Mapping[str, str] = {}
    suffix: Literal["", "_bucket", "_sum", "_count"] = ""


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Sequence[Sample]


def histogram(bounds: Sequence[float], counts: Sequence[int], total: float) -> list[Sample]:
    """`counts`: of each bucket alone. In the text, each bucket holds those before it too."""
    samples: list[Sample] = []
    so_far = 0
    for bound, count in zip((*bounds, None), counts, strict=True):
        so_far += count
        samples.append(Sample(so_far, {"le": "+Inf" if bound is None else f"{bound:g}"}, "_bucket"))
    return [*samples, Sample(total, suffix="_sum"), Sample(so_far, suffix="_count")]


def render(families: Iterable[Family], common: Mapping[str, str]) -> str:
    """`common`: labels of every sample."""
    return "".join(f"{line}\n" for family in families for line in _lines(family, common))


def _lines(family: Family, common: Mapping[str, str]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in {**common, **sample.labels}.items())
        yield f"{family.name}{sample.suffix}{{{labels}}} {sample.value!r}"
