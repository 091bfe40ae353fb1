"""A run's settings in, a gateway on free ports with this run out, for as long as a block of code runs."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RUN = "lander"
# As large as no program of the bench fills: the learner reads what comes, and has nothing to do besides.
IDLE = '[lanes]\ncount = 16384\n[algorithm]\nkind = "ppo"\nminibatch = 2097152\nepochs = 1\n[feed]\nmax_lag = 1000000\n'
# The settings of LunarLander elsewhere in the bench, in batches that are there four times a second at full speed.
BUSY = """[lanes]
count = 32
steps = 128
[algorithm]
kind = "ppo"
epochs = 4
minibatch = 1024
gamma = 0.999
lam = 0.98
entropy = 0.01
[network]
hidden = [64, 64]
"""


@contextmanager
def gateway(command: list[str], settings: str) -> Iterator[tuple[str, Path, int]]:
    """Start one and wait until it says where it is: its address, the run's folder, its process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        home = Path(place)
        (home / f"{RUN}.toml").write_text(f'run = "{RUN}"\nsteps = 0\n{settings}')
        words = [*command, "serve", "--home", str(home / "home"), "--grpc", "127.0.0.1:0", "--http", ""]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [*words, str(home / f"{RUN}.toml")], stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            yield _address(process, home / "log"), home / "home" / "runs" / RUN, process.pid
        finally:
            process.terminate()
            process.wait(30)


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("grpc "):
            return line.split()[1]
    time.sleep(0.1)
    raise RuntimeError(f"the gateway ended: {log.read_text()[-500:]}")
