"""A run's settings in, a gateway on free ports with this run out, for as long as a block of code runs."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import measure
import systems

RUN = "lander"
Settings = Mapping[str, Any]
# LunarLander's settings of the whole bench: equal work for everybody. All experience stays in the log, to be audited.
BUSY: Settings = systems.EQUAL["LunarLander-v3"] | {"checkpoint.interval": 1e6}
# Sixteen times as much arithmetic: more than one core has time for, so that the learner is busy without a pause.
FULL: Settings = BUSY | {"algorithm.epochs": 16 * BUSY["algorithm.epochs"]}
# A batch as large as no program of the bench fills: the learner reads what comes, and has nothing to do besides.
IDLE: Settings = BUSY | {"lanes.count": 4096, "algorithm.minibatch": 4096 * BUSY["lanes.steps"], "algorithm.epochs": 1}


class Served(NamedTuple):
    """A gateway that runs."""

    address: str
    folder: Path  # of the run
    pid: int
    token: str  # in the environment of it and of its learner

    def learner(self) -> int | None:
        """Give the process that learns, once there is one."""
        children = Path(f"/proc/{self.pid}/task")
        found = [int(child) for task in children.glob("*/children") for child in task.read_text().split()]
        return next((pid for pid in found if b"farfield.live" in Path(f"/proc/{pid}/cmdline").read_bytes()), None)


@contextmanager
def gateway(
    options: systems.Options, settings: Settings | None, *, core: int | None = None, cold: bool = False
) -> Iterator[Served]:
    """Start one and wait until it says where it is; with `core`, it runs on that one alone."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        home, token = Path(place), f"gateway-{os.urandom(8).hex()}"
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        words = [*pinned, *options.farfield, "serve", "--home", str(home / "home"), "--grpc", "127.0.0.1:0"]
        words += ["--http", ""]
        if settings is not None:
            words.append(str(home / f"{RUN}.toml"))
            (home / f"{RUN}.toml").write_text(_toml({"run": RUN, "steps": 0} | dict(settings)))
        # An update of these shapes is compiled once in the whole bench, as on a machine that learned before.
        compiled = home / "compiled" if cold else _compiled()
        variables = os.environ | {measure.TOKEN: token, "JAX_COMPILATION_CACHE_DIR": str(compiled)}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=variables)
        try:
            address = _address(process, home / "log")
            yield Served(address, home / "home" / "runs" / RUN, process.pid, token)
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()


def _address(process: "subprocess.Popen[str]", log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("grpc "):
            return line.split()[1]
    process.wait(10)
    raise RuntimeError(f"the gateway ended: {log.read_text()[-500:]}")


def _toml(settings: dict[str, Any]) -> str:
    """Write dotted keys; what the command line would take as a word is one here."""
    plain = {key: {"true": True, "false": False}.get(str(value), value) for key, value in settings.items()}
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in plain.items())


_kept: list["tempfile.TemporaryDirectory[str]"] = []


def _compiled() -> Path:
    """Give the folder of compiled updates that all gateways of this process share."""
    if not _kept:
        _kept.append(tempfile.TemporaryDirectory(prefix="bench-compiled-"))
    return Path(_kept[0].name)
