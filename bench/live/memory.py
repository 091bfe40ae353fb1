"""What a client costs in memory: this program with NumPy alone, or with a session that acts; one line of JSON.

Usage: memory.py [ADDRESS RUN] [--seconds 10]
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np


def megabytes() -> float:
    """Give what is resident."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?")
    parser.add_argument("run", nargs="?")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    obs = np.zeros(8, np.float32)
    before = megabytes()
    if given.address is None:
        print(json.dumps({"megabytes": before}), flush=True)
        return
    import farfield

    spec = farfield.spec(obs=farfield.box((8,)), action=farfield.discrete(4))
    app = farfield.connect(given.address, run=given.run, spec=spec, wait=60.0)
    app.wait(60.0)
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        with app.episode() as episode:
            for _ in range(1000):
                episode.act(obs)
                episode.reward(0.5)
            time.sleep(0.02)  # a program that does nothing else would only fill the queue of the gateway
    counters = app.counters()
    line = {"megabytes": megabytes(), "before": before, "acted": counters.acted, "waiting": counters.waiting_bytes}
    print(json.dumps(line), flush=True)
    app.close(10.0)


if __name__ == "__main__":
    main()
