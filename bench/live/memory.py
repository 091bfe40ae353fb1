"""What a client costs in memory: this program with NumPy alone, or with a session that acts; one line of JSON.

Usage: memory.py [ADDRESS RUN]
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np


def megabytes() -> float:
    """Give what is resident."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def main() -> None:
    obs = np.zeros(8, np.float32)
    if len(sys.argv) > 1:
        import farfield

        spec = farfield.spec(obs=farfield.box((8,)), action=farfield.discrete(4))
        app = farfield.connect(sys.argv[1], run=sys.argv[2], spec=spec, spool="", wait=60.0)
        app.wait(60.0)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with app.episode() as episode:
                for _ in range(1000):
                    episode.act(obs)
                    episode.reward(0.5)
        print(json.dumps({"megabytes": megabytes(), "counters": repr(app.counters())}), flush=True)
        app.close(10.0)
    else:
        print(json.dumps({"megabytes": megabytes()}), flush=True)


if __name__ == "__main__":
    main()
