"""A name for an agent that was given none: two words, such as `AmberHeron`."""

from __future__ import annotations

import random
from typing import Final

_ADJECTIVES: Final = (
    "Amber Ample Azure Brave Bright Calm Candid Clever Coral Crisp Deft Eager Early Fair Fleet Fond Gentle Gilded "
    "Glad Golden Hardy Honest Humble Ivory Jade Jolly Keen Kind Light Lively Lucid Mellow Merry Mild Neat Nimble "
    "Noble Opal Patient Plucky Polite Prime Quick Quiet Ready Rosy Sage Serene Silver Sincere Sleek Snug Steady "
    "Sunny Swift Tidy Tranquil True Velvet Vivid Warm Wise Witty"
)
_NOUNS: Final = (
    "Acorn Anchor Aspen Badger Beacon Birch Brook Canyon Cedar Clover Comet Condor Cove Crane Delta Dolphin Ember "
    "Falcon Fern Finch Fjord Garnet Glade Grove Harbor Hazel Heron Island Juniper Kestrel Lagoon Lantern Larch Lark "
    "Linden Lynx Maple Marten Meadow Mesa Moss Otter Owl Pebble Pine Plover Prairie Quail Quarry Raven Reef Ridge "
    "River Robin Sparrow Spruce Summit Thistle Tide Valley Walnut Willow Wren"
)


def random_name() -> str:
    return random.choice(_ADJECTIVES.split()) + random.choice(_NOUNS.split())
