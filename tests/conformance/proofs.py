"""What proves to a vendor that its model had the thought that is sent back to it."""

from __future__ import annotations

import re

from tests.conformance.vendors import Site, VendorProcess

# How each vendor spells the proof of what its model thought; it must come back as it was given.
PROOF = {
    "anthropic": r'"signature":"signed-[0-9a-f]{24}"',
    "responses": r'"encrypted_content":"[^"]{20,}"',
    "bedrock": r'"signature":"signed-[0-9a-f]{24}"',
    "gemini": r'"thoughtSignature":"c2lnbmVkLWJ5[^"]*"',  # begins with "signed-by": not the one for who has lost it
}


def proofs(fake: VendorProcess, site: Site) -> list[str]:
    return re.findall(PROOF[site.vendor.name], fake.last_request())
