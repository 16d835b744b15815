"""Text for the operator about the egress policy, and the refusal of tools where it cannot be enforced."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.core.egress import Mode
from holdfast.errors import SandboxLost
from holdfast.tools.sandbox.contract import EgressConfig

_log = logging.getLogger(__name__)
_WORDS: Final[dict[Mode, str]] = {
    "none": "none: tools have no network",
    "public": "public: tools reach the internet, but no private addresses and not this machine",
    "allow-list": "allow-list: tools reach only what HOLDFAST_TOOL_EGRESS_ALLOW lists",
    "all": "ALL: tools reach everything that this machine reaches, but not this server",
}
_REMEDY: Final = (
    "The whole policy needs Linux 5.6 or later on x86_64 or aarch64, seccomp user notifications and pidfd_getfd. The "
    "default seccomp profile of Docker allows pidfd_getfd only with --cap-add SYS_PTRACE."
)


def egress_words(config: EgressConfig, isolation: str) -> str:
    """For the banner: the policy, and what of it stands."""
    words = _WORDS[config.policy.mode]
    missing = _missing(config, isolation)
    return f"{words} (NOT ENFORCED: {missing})" if missing else words


def warn_of_egress(config: EgressConfig, isolation: str | None) -> None:
    missing = _missing(config, isolation or "")
    if missing:
        _log.warning("THE EGRESS POLICY OF TOOLS IS NOT ENFORCED: %s. %s", missing, _REMEDY)
    elif config.policy.mode == "all":
        _log.warning(
            "TOOLS MAY CONNECT TO EVERYTHING that this machine reaches, private addresses included, because "
            "HOLDFAST_TOOL_EGRESS is all. Only this server's own port is refused."
        )


def require_egress(config: EgressConfig, isolation: str | None) -> None:
    """Raises where a tool could drive the server that runs it, or reach what the operator did not list."""
    layers = _layers(isolation)
    mode = config.policy.mode
    if mode == "all" or "egress" in layers or (mode == "none" and "egress-none" in layers):
        return
    protected = "egress-port" in layers or config.has_key or not config.port
    if mode == "public" and protected:
        return
    raise SandboxLost(
        f"The tool was not run: the egress policy {mode} cannot be enforced on this machine. {_REMEDY} "
        "HOLDFAST_TOOL_EGRESS=all runs tools without it."
    )


def _missing(config: EgressConfig, isolation: str) -> str | None:
    """What is left of the policy when it does not stand, or None when it stands."""
    layers = _layers(isolation)
    mode = config.policy.mode
    if "egress" in layers or (mode == "none" and "egress-none" in layers):
        return None
    if "egress-port" in layers and mode in ("public", "all"):
        return f"tools reach everything but port {config.port} of any machine"
    if mode == "all":
        return "tools reach this server too"
    if mode == "public" and (config.has_key or not config.port):
        return "tools reach everything; only the API key keeps them from driving this server"
    return "so no custom tool is run"


def _layers(isolation: str | None) -> list[str]:
    return (isolation or "").split("+")
