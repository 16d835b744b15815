from __future__ import annotations

import pytest

from holdfast.engine.model_call import find_model
from holdfast.errors import Rejected
from holdfast.llm.catalog import adapters
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.endpoint import Endpoint
from holdfast.settings import DeclaredModel


async def test_a_model_whose_extra_is_not_installed_is_rejected_in_words_that_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(adapters._BRIDGED, "google_ai", "holdfast_has_no_such_module")  # pyright: ignore[reportArgumentType]
    google = Endpoint(provider_name="google_ai", provider_type="google_ai", base_url="http://127.0.0.1:9")
    catalog = ModelCatalog([google], declared=[DeclaredModel(handle="google_ai/gemini-2.5-pro", context_window=1_000)])
    with pytest.raises(Rejected, match=r"pip install 'holdfast\[vendors\]'"):
        await find_model(catalog, "google_ai/gemini-2.5-pro")
    await catalog.aclose()
