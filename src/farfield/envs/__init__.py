"""Environments that we ship, each for one thing an algorithm must be able to do; importing this registers them."""

from typing import Any

import gymnasium

IDS: dict[str, tuple[str, int | None, dict[str, Any]]] = {  # entry point, time limit, options
    "farfield/Corridor-v0": ("corridor:Corridor", 20, {}),
    "farfield/IdentityBox-v0": ("identity:Identity", None, {"kind": "box"}),
    "farfield/IdentityDiscrete-v0": ("identity:Identity", None, {"kind": "discrete"}),
    "farfield/IdentityMasked-v0": ("identity:Identity", None, {"kind": "masked"}),
    "farfield/IdentityMultiBinary-v0": ("identity:Identity", None, {"kind": "multi_binary"}),
    "farfield/IdentityMultiDiscrete-v0": ("identity:Identity", None, {"kind": "multi_discrete"}),
    "farfield/Jobs-v0": ("jobs.env:Jobs", None, {}),
    "farfield/MemoryCorridor-v0": ("memory:MemoryCorridor", None, {}),
}

for _id, (_place, _limit, _options) in IDS.items():
    gymnasium.register(_id, entry_point=f"farfield.envs.{_place}", max_episode_steps=_limit, kwargs=_options)
