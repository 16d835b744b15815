"""The framework is loaded here, before any of our modules asks for it, without building its models of OpenAPI.

That is a tenth of a start, and only /openapi.json needs them. They are declared all the same, and pydantic builds each
when it is first used. A program that has loaded the framework before us has paid for them already.
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
