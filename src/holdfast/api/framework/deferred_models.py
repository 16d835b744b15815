"""Loads the framework without building its models of OpenAPI. To be imported before anything else that loads it.

That is a tenth of a start, and only /openapi.json needs them. They are declared all the same, and pydantic builds each
when it is first used. A program that has loaded the framework before us has paid for them already.

The hack: pydantic reads `BaseModel.model_config` when a model is declared, so it is changed for the time of one import.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

_known = BaseModel.model_config
BaseModel.model_config = ConfigDict(defer_build=True)
try:
    import fastapi.openapi.models as _models
finally:
    BaseModel.model_config = _known

del _models
