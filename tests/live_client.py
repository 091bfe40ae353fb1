"""A live program in a process of its own: options in; steps that can be told apart, and what it did, out.

Every observation holds the program's number and the number of its step, so that a log can be compared with what
happened.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateways import PATIENCE, eventually


def spec() -> Any:
    """Say what it sees and does."""
    from farfield.types import Field, Kind, Spec

    return Spec(
        (Field("obs", Kind.BOX, "float32", (3,)), Field("mask", Kind.MULTI_BINARY, "bool", (3,))),
        (Field("action", Kind.DISCRETE, "int64", (), (3,), mask="mask"),),
    )


BATCH = 128  # rows
CONFIG = {  # nothing is too old to be learned from: what the policy did is used, and all of it
    "lanes": {"count": 8, "steps": 16}, "algorithm": {"kind": "ppo", "minibatch": 64, "epochs": 1},
    "network": {"hidden": [8]}, "feed": {"max_lag": 1_000_000}, "checkpoint": {"interval": 1.0},
}  # fmt: skip


def seen(number: int, step: int) -> list[float]:
    """Write both as small numbers, so that they do no harm to who learns from them."""
    return [number / 8, step // 1000 / 1000, step % 1000 / 1000]


def read(obs: Any) -> tuple[int, int]:
    """Give them back."""
    return round(float(obs[0]) * 8), round(float(obs[1]) * 1000) * 1000 + round(float(obs[2]) * 1000)


def live(episode: Any, number: int, seed: int, step: int) -> tuple[int, int]:
    """Take one step in an episode that ends now and then; gives the action, and the next step."""
    action = int(episode.act(seen(number, step), mask=[step % 4 != place for place in range(3)]))
    assert action != step % 4
    episode.reward(step % 7)
    match random.Random(f"{seed} {step}").randrange(40):
        case 0:
            episode.end()
        case 1:
            episode.end(truncated=True, obs=[number / 8, -1.0, 0.0], mask=[True] * 3)
    return action, step + 1


class Program:
    """A child that lives: `stop` gives what it did, `kill` ends it as an out-of-memory killer would."""

    def __init__(
        self, folder: Path, address: str, *, number: int = 0, pause: float = 0.005, patience: float = PATIENCE,
        environment: dict[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.number = number
        self.place = folder / f"program-{number}-{time.monotonic_ns()}"
        self.place.mkdir(parents=True)
        told = {
            "number": number, "pause": pause, "patience": patience, "place": str(self.place),
            "options": {"address": address, "run": "live", "spool": ""} | options,
        }  # fmt: skip
        self._errors = (self.place / "err").open("w")
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(told)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=self._errors, env={**os.environ, **(environment or {})},
        )  # fmt: skip

    @property
    def log(self) -> str:
        """What it wrote: nothing, unless something went wrong."""
        return (self.place / "err").read_text()

    @property
    def now(self) -> dict[str, Any]:
        """What it said of itself last."""
        try:
            return json.loads((self.place / "now").read_text())
        except FileNotFoundError:
            assert self.process.poll() is None, self.log
            return {}

    def until(self, true: Any, what: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until what it says of itself is as wanted."""
        try:
            return eventually(lambda: (now := self.now) and true(now) and now, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.now} {self.log}") from None

    def stop(self, seconds: float = 2 * PATIENCE) -> "Did":
        """Let it deliver, and say what it did."""
        out, _ = self.process.communicate("", timeout=seconds)
        assert self.process.returncode == 0, self.log
        return Did(**json.loads(out))

    def kill(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def end(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.kill()
        self._errors.close()


@dataclass
class Did:
    """What a program says that it did."""

    number: int
    actions: str  # a digit for each step
    counters: dict[str, Any]
    remaining: list[int]
    slowest: float  # seconds of one act
    versions: list[int]  # numbers that it acted with


def main() -> None:
    """Act until the input ends, deliver, and say what happened."""
    told = json.loads(sys.argv[1])
    import select

    import msgspec

    import farfield

    number, options, place = told["number"], told["options"], Path(told["place"])
    app = farfield.connect(options.pop("address"), spec=spec(), **options)
    actions: list[int] = []
    versions: dict[int, None] = {}
    slowest, said, step = 0.0, 0.0, 0

    def say() -> None:
        facts = msgspec.to_builtins(app.counters()) | {"acts": step, "trouble": app.trouble}
        temporary = place / "now.part"
        temporary.write_text(json.dumps(facts))
        temporary.rename(place / "now")

    def told_to_stop(pause: float) -> bool:
        return bool(select.select([sys.stdin], [], [], pause)[0])

    with app.episode() as episode:
        while True:
            began = time.monotonic()
            action, step = live(episode, number, number, step)
            actions.append(action)
            slowest = max(slowest, time.monotonic() - began)
            versions[app.counters().version] = None
            if time.monotonic() - said > 0.05:
                said = time.monotonic()
                say()
            if told_to_stop(told["pause"]):
                break
    say()
    while not told_to_stop(0.1):
        say()
    remaining = app.flush(told["patience"])
    did = Did(
        number=number, actions="".join(map(str, actions)), counters=msgspec.to_builtins(app.counters()),
        remaining=list(remaining), slowest=slowest, versions=sorted(versions),
    )  # fmt: skip
    app.close(5.0)
    print(json.dumps(did.__dict__))  # noqa: T201 - what its parent reads


if __name__ == "__main__":
    main()
