"""HTTP. A route parses the request with `wire`, calls one function of `actions`, and shows the result with `wire`."""

from __future__ import annotations

from holdfast.api.framework import deferred_models  # first: before any of our modules loads the framework

del deferred_models
