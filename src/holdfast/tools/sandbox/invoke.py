"""Runs a tool's source in the child: finds the function, fits the arguments to it, shapes what it returns."""

from __future__ import annotations

import builtins
import importlib
import json
import linecache
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast.core.messages import Content, Image, Text, readable_image
from holdfast.tools.base import Job, failure_text
from holdfast.tools.sandbox.argument_models import ArgumentModels
from holdfast.tools.sandbox.contract import Answer

_PLAIN: Final = (str, int, float, bool, list, dict)
_MODULE: Final = "tool"
_TAKES_ANY_KEYWORD: Final = 0x08  # of a code object's flags
# What a source finds without an import. Made once: a copy for each call would touch every object in it.
_TYPING_NAMES: Final[list[str]] = cast("Any", typing).__all__
_BUILTINS: Final[dict[str, Any]] = {name: getattr(typing, name) for name in _TYPING_NAMES} | vars(builtins)


def invoke(job: Job, explain: Callable[[BaseException], str] = str) -> Answer:
    """The tool boundary: whatever the tool raises, SystemExit included, becomes an answer."""
    try:
        answer = Answer("success", shape(call(job)))
    except BaseException as problem:
        sys.stderr.write(own_traceback(problem, _filename(job)))
        answer = Answer("error", _writable(failure_text(job.tool_name, type(problem).__name__, explain(problem))))
    sys.stdout.flush()
    sys.stderr.flush()
    return answer


def prepare_output() -> None:
    """Once, in the fork server, for all calls: what a tool has printed is kept also if its process is killed."""
    for stream in (sys.stdout, sys.stderr):
        cast("Any", stream).reconfigure(line_buffering=True)


def call(job: Job) -> Any:
    """Whatever the tool returns, as it returns it."""
    models = ArgumentModels(job.args_schema or {})
    function = load(job, models)
    result: object = function(**fit(function, job, models))
    if not hasattr(type(result), "__await__"):
        return result
    return importlib.import_module("asyncio").run(_awaited(result))  # few tools need it, and it is large


def plain(result: Any) -> Any:
    """What a tool returned, as data that JSON has."""
    return msgspec.json.decode(msgspec.json.encode(result, enc_hook=_to_plain))


def load(job: Job, models: ArgumentModels) -> Callable[..., Any]:
    """The function that has the tool's name; else the last one, as in a tool that was given another name."""
    filename = _filename(job)
    # Tracebacks show source lines, and there is no file to read them from.
    linecache.cache[filename] = (len(job.source_code), None, job.source_code.splitlines(keepends=True), filename)
    module = types.ModuleType(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses and pydantic look annotations up through it
    names = module.__dict__
    names["__builtins__"] = _BUILTINS
    names["client"] = None
    if not models.is_empty:
        names.update(models.named())
    exec(compile(job.source_code, filename, "exec", dont_inherit=True), names)
    function = names.get(job.tool_name if job.tool_name in names else _last_function(job.source_code))
    if not callable(function):
        raise NameError(f"the source defines no function named {job.tool_name!r}")
    return function


def _last_function(source: str) -> str:
    ast = importlib.import_module("ast")  # few tools need it, and it is large
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return names[-1] if names else ""


class Keywords(msgspec.Struct, frozen=True):
    """The keyword arguments that a function takes."""

    names: Sequence[str]
    required: Sequence[str]
    takes_others: bool


def keywords_of(function: Callable[..., Any]) -> Keywords:
    if type(function) is not types.FunctionType or function.__dict__:  # decorated, or another kind of callable
        return _keywords_by_inspection(function)
    code = function.__code__  # as `inspect` reads it, which few tools need, and which is large
    positional = code.co_varnames[: code.co_argcount]
    without_default = positional[: len(positional) - len(function.__defaults__ or ())]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__kwdefaults__ or {}
    return Keywords(
        names=(*positional[code.co_posonlyargcount :], *by_name),
        required=(*without_default[code.co_posonlyargcount :], *(name for name in by_name if name not in defaults)),
        takes_others=bool(code.co_flags & _TAKES_ANY_KEYWORD),
    )


def _keywords_by_inspection(function: Callable[..., Any]) -> Keywords:
    parameters = importlib.import_module("inspect").signature(function).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return Keywords(
        names=[one.name for one in named],
        required=[one.name for one in named if one.default is one.empty],
        takes_others=any(one.kind is one.VAR_KEYWORD for one in parameters),
    )


def fit(function: Callable[..., Any], job: Job, models: ArgumentModels) -> dict[str, Any]:
    """The keyword arguments of the call, or a TypeError that names what is missing or unknown."""
    keywords = keywords_of(function)
    given = dict(job.arguments)
    if "agent_state" in keywords.names:
        given["agent_state"] = types.SimpleNamespace(id=job.agent_id, name=job.agent_name)
    if "agent_id" in keywords.names:
        given["agent_id"] = job.agent_id
    if "self" in keywords.names:  # of a method that was sent as a function
        given["self"] = None
    hints = _hints(function)
    if not models.is_empty:
        hints = models.of_parameters() | hints
    for name in keywords.required:
        # To the model such a parameter is optional, whether or not its author wrote `= None`.
        if name not in given and _allows_none(hints.get(name)):
            given[name] = None
    _check_names(job.tool_name, keywords, given)
    return {name: coerce(value, hints[name]) if name in hints else value for name, value in given.items()}


def coerce(value: Any, annotation: Any) -> Any:
    """Best effort: what does not fit is passed as it came, and the tool may judge it."""
    if annotation in _PLAIN and type(cast("object", value)) is annotation:
        return value
    try:
        return cast("Any", msgspec.convert(value, annotation, strict=False, dec_hook=_from_plain))
    except (ValueError, TypeError):  # msgspec.ValidationError is a ValueError
        return value


def shape(result: Any) -> Content:
    if isinstance(result, str):
        return _writable(result)
    if hasattr(result, "model_dump_json"):
        return str(result.model_dump_json())
    parts = _parts(result)
    if parts:
        return parts
    if isinstance(result, (dict, list)) or hasattr(type(cast("object", result)), "__dataclass_fields__"):
        return _encoded(result)
    return _writable(str(result))


def _encoded(result: Any) -> str:
    try:
        return msgspec.json.encode(result, enc_hook=_to_plain).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(result, enc_hook=_to_plain), separators=(",", ":"))


def _writable(text: str) -> str:
    """Halves of characters, as some libraries leave them in text, cannot be stored: pairs are joined, others marked."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def own_traceback(problem: BaseException, filename: str) -> str:
    """From the tool's first frame on: our own frames would tell its author nothing."""
    frame = problem.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != filename:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(problem), problem, frame))


def _filename(job: Job) -> str:
    return f"<tool {job.tool_name}>"


async def _awaited(result: Any) -> Any:
    return await result


def _check_names(tool: str, keywords: Keywords, given: Mapping[str, Any]) -> None:
    unknown = [] if keywords.takes_others else [name for name in given if name not in keywords.names]
    missing = [name for name in keywords.required if name not in given]
    problems = [f"missing arguments: {', '.join(missing)}"] if missing else []
    problems += [f"unknown arguments: {', '.join(unknown)}"] if unknown else []
    if problems:
        raise TypeError(f"{tool}() was called with {'; '.join(problems)}")


def _allows_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    annotations: dict[str, Any] = getattr(function, "__annotations__", {})
    if all(annotation in _PLAIN for annotation in annotations.values()):
        return annotations
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}  # an annotation that cannot be resolved cannot guide a conversion


def _parts(result: Any) -> tuple[Text | Image, ...] | None:
    """The result as text and image parts, or None when it is anything else."""
    items = cast("list[Any]", result) if isinstance(result, list) else [result]
    parts = [_part(item) for item in items]
    whole = tuple(part for part in parts if part is not None)
    return whole if whole and len(whole) == len(parts) else None


def _part(item: Any) -> Text | Image | None:
    match item:
        case {"type": "text", "text": str(text)}:
            return Text(_writable(text))
        case {"type": "image", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
            return readable_image(media_type, data)
        case _:
            return None


def _from_plain(annotation: Any, value: Any) -> Any:
    """Pydantic is recognised by its methods and not imported, so that only tools that use it depend on it."""
    if isinstance(value, annotation):
        return value
    if hasattr(annotation, "model_validate"):
        return annotation.model_validate(value)
    raise TypeError(f"{annotation!r} cannot be made from plain data")


def _to_plain(value: Any) -> Any:
    """For values that JSON has no type for."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
