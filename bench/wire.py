"""Measures the wire: encoding and decoding a fragment, and pushes from one process to another over a unix socket."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from farfield import codec
from farfield.transports import grpc, memory
from farfield.types import Cursor, Fragment

REPEATS = 5
# As in every process that Farfield starts: large buffers are kept, not given back and faulted in again.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
PUSHES = (("push_64kib", 64 << 10, 8_000), ("push_6_6kb", 6_600, 30_000))  # name, bytes, messages


def cartpole(steps: int = 128) -> Fragment:
    rng = np.random.default_rng(1)
    flags = {name: rng.random((steps, 1)) < 0.1 for name in ("terminated", "truncated", "valid", "first")}
    columns = {
        "obs": rng.normal(size=(steps + 1, 1, 4)).astype(np.float32),
        "action": rng.integers(0, 2, (steps, 1)),
        "reward": np.ones((steps, 1), np.float32),
        "log_prob": rng.normal(size=(steps, 1)).astype(np.float32),
        **flags,
    }
    return Fragment(run="cartpole", stream="0f" * 16, seq=7, version=3, attempt=1, spec="ab" * 32, columns=columns)


def codec_figures() -> list[dict[str, object]]:
    fragment = cartpole()
    payload = codec.encode_fragment(fragment)
    encode = microseconds(lambda: codec.encode_fragment(fragment))
    decode = microseconds(lambda: codec.decode_fragment(payload, spec=fragment.spec))
    return [
        {"name": "encode", "value": encode, "unit": "µs", "target": None},
        {"name": "decode", "value": decode, "unit": "µs", "target": None},
        {"name": "encode_decode", "value": encode + decode, "unit": "µs", "target": "<= 25"},
    ]


def microseconds(work: Callable[[], object], count: int = 10_000) -> float:
    """The median time of one call."""
    times: list[int] = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e3


def push_figures() -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    for name, size, count in PUSHES:
        seconds = statistics.median(pushed(size, count) for _ in range(REPEATS))
        big = size > 10_000
        value, unit, target = (size * count / seconds / 1e6, "MB/s", 500) if big else (count / seconds, "/s", 10_000)
        figures.append({"name": name, "value": value, "unit": unit, "target": f">= {target}"})
    return figures


def pushed(size: int, count: int) -> float:
    """Seconds from another process's first append to its last acknowledgement, while a reader here takes it all."""
    with tempfile.TemporaryDirectory() as folder:
        log = memory.make(memory.Config())
        server = grpc.serve(log, f"unix:{folder}/wire.sock")
        reader = threading.Thread(target=drain, args=(log, count))
        reader.start()
        command = [sys.executable, str(Path(__file__)), "--push", server.address, str(size), str(count)]
        seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        reader.join()
        server.stop()
        log.close()
    return seconds


def drain(log: memory.MemoryTransport, count: int) -> None:
    cursor: Cursor = {}
    while cursor.get(0, 0) < count:
        _, cursor = log.read("experiences", after=cursor, limit=1_000, timeout=1.0)
        log.note("experiences", "bench", cursor)


def push(address: str, size: int, count: int) -> float:
    client = grpc.make(grpc.Config(address))
    payload = bytes(size)
    client.append("experiences", b"", key="first").result()  # connected from here on
    begin = time.perf_counter()
    for _ in range(count - 2):
        client.append("experiences", payload, key="0f" * 16)
    client.append("experiences", payload, key="0f" * 16).result()
    seconds = time.perf_counter() - begin
    client.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    parser.add_argument("--push", nargs=3, metavar=("ADDRESS", "SIZE", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.push:
        address, size, count = options.push
        print(push(address, int(size), int(count)))
        return
    if not ALLOCATOR.items() <= os.environ.items():  # the allocator reads these when a process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    for figure in codec_figures() + push_figures():
        if options.json:
            print(json.dumps(figure))
        else:
            print(f"{figure['name']:>15} {figure['value']:>12,.1f} {figure['unit']:<5} {figure['target'] or ''}")


if __name__ == "__main__":
    main()
