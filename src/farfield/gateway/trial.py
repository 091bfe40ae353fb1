"""A config that somebody wants for a run in, the whole of it out, or why no learner could use it: a process of its own.

Algorithms bring their frameworks along, which a gateway that serves thousands of clients should not hold in memory.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from farfield import config as configs
from farfield.config import RunConfig, Section
from farfield.errors import ConfigError, FarfieldError

REFUSED = 2
PATIENCE = 120.0  # seconds for imports on a machine that is busy


def attempt(wanted: Section, kept: Section | None = None, *, environment: Mapping[str, str]) -> RunConfig:
    """Ask a new process whether `wanted` can be a run's config, or that of a run which was begun with `kept`."""
    if kept is None and _plain(wanted):
        return configs.decode(wanted)
    question = msgspec.json.encode({"wanted": wanted, "kept": kept})
    command = [sys.executable, "-m", "farfield.gateway.trial"]
    try:
        done = subprocess.run(
            command,
            input=question,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the config could not be tried ({type(error).__name__}): try again") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it wrote nothing"]
        raise ConfigError(said[-1])
    return configs.decode(msgspec.json.decode(done.stdout))


def whole(wanted: Section, kept: Section | None) -> RunConfig:
    """Decode a config and the sections that its algorithm and its feed read."""
    config = configs.continued(kept, [wanted]) if kept else configs.decode(wanted)
    module = configs.plugin("learning.algorithms", config.algorithm.get("kind", "ppo"))
    configs.section_of(config.algorithm, module, "algorithm")
    kind = config.feed.get("kind", module.FEED)
    if kind != module.FEED:
        raise ConfigError(
            f"[feed] kind = {kind!r}: this algorithm learns from kind = {module.FEED!r} alone; leave it out"
        )
    from farfield.learning import feeds, replay

    configs.section_of(config.feed, replay if kind == "replay" else feeds, "feed")
    kind = config.transport["kind"]
    transport = configs.plugin("transports", kind)
    if not getattr(transport, "DURABLE", False):
        raise ConfigError(f"[transport] kind = {kind!r} would not outlive the gateway: leave the section out, for disk")
    place = {"folder": "log"} if kind == "disk" else {}
    configs.section_of(place | config.transport, transport, "transport")
    return config


def _plain(wanted: Section) -> bool:
    """Say whether there is nothing in it that an algorithm, a feed or a transport would have to look at."""
    algorithm = wanted.get("algorithm", {"kind": "ppo"})
    ours = algorithm.keys() <= {"kind"} and algorithm.get("kind", "ppo") in configs.kinds("learning.algorithms")
    return ours and not wanted.get("feed") and wanted["transport"] == {"kind": "disk"}


def main() -> None:
    """Answer on stdout: the whole config as JSON."""
    question: dict[str, Any] = msgspec.json.decode(sys.stdin.buffer.read())
    try:
        config = whole(question["wanted"], question["kept"])
    except FarfieldError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        sys.exit(REFUSED)
    sys.stdout.buffer.write(msgspec.json.encode(config))


if __name__ == "__main__":
    main()
