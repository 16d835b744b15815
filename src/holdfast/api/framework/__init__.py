"""Workarounds for what FastAPI costs at this API's size. Nothing else in `api` works around its framework.

- `deferred_models`: FastAPI builds the pydantic models of OpenAPI when it is imported, a tenth of a start. Here they
  are built when they are first used. It can go when FastAPI declares them with `defer_build`.
- `routing`: FastAPI builds the validators of every route at its declaration, and tries every route in turn for each
  request. Here a route is built when it is first used, and found by walking its path. It can go when FastAPI does so.
- `routing.direct_way`: FastAPI solves an endpoint's dependencies anew for each request. Here the arguments of plain
  endpoints are worked out once (decision 12). It can go when the solver takes no measurable part of sending a message.

All three would go with another framework, or with Starlette alone and a description of the API of our own. They change
no behaviour: `tests/api/test_routing.py` compares both ways, and whatever is not in order is left to FastAPI, so that
its error messages stay.
"""
