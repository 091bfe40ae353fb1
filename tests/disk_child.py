"""A process that appends to a disk log until it is killed, and says what was owned; see test_disk.py.

FOLDER LIFE SEED: payloads are (life, number) and random padding; each line on standard output is a number that is
owned.
"""

import os
import random
import struct
import sys

from farfield.transports import disk

HEAD = struct.Struct("<II")


def main(folder: str, life: int, seed: int) -> None:
    rng = random.Random(seed)
    log = disk.make(disk.Config(folder, wait=60.0))
    number = 0
    while True:
        payload = HEAD.pack(life, number) + bytes(rng.choice((0, 100, 7_000, 7_000, 200_000)))
        done = log.append("t", payload, key="k")
        done.add_done_callback(lambda _, number=number: os.write(1, b"%d\n" % number))
        number += 1
        if rng.random() < 0.05:
            done.result(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
