"""Thirty-two clients that push fragments of LunarLander at once, and wait until all are durable: one line of JSON.

Everything of a round is encoded before its clock starts, so that the clients cost little. The fragments say that the
host decided, so that a learner of PPO reads each of them, counts it and lets it go: it has nothing to do besides.

Usage: ingest.py ADDRESS RUN [--clients 32] [--fragments 500] [--rounds 1] [--pid 0]
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import grpc
import numpy as np

from farfield.canonical import spec_hash, to_json
from farfield.codec import encode_fragment
from farfield.types import Field, Fragment, Kind, Spec
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

STEPS, CHUNK = 128, 16  # rows of a fragment; fragments of one message
SPEC = Spec((Field("obs", Kind.BOX, "float32", (8,)),), (Field("action", Kind.DISCRETE, "int64", (), (4,)),))
ALONE: Any = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each client


def columns(rng: np.random.Generator) -> dict[str, np.ndarray]:
    flags = {name: np.zeros((STEPS, 1), bool) for name in ("terminated", "truncated", "first")}
    return {
        "obs": rng.standard_normal((STEPS + 1, 1, 8)).astype(np.float32), "action": rng.integers(0, 4, (STEPS, 1)),
        "reward": rng.standard_normal((STEPS, 1)).astype(np.float32), "valid": np.ones((STEPS, 1), bool), **flags,
    }  # fmt: skip


class Client:
    """One stream of fragments, all ready to go."""

    def __init__(self, address: str, run: str, number: int, fragments: int) -> None:
        stream, spec, rows = token_hex(16), spec_hash(SPEC), columns(np.random.default_rng(number))
        payloads = [
            encode_fragment(Fragment(run, stream, seq, 0, 1, spec, rows, decision=seq * STEPS, source="host"))
            for seq in range(fragments)
        ]
        self._hello = wire.Hello(run=run, policy="main", spec=to_json(SPEC), client=f"{number}", protocol=1)
        self._messages = [wire.Up(payloads=payloads[n : n + CHUNK]) for n in range(0, fragments, CHUNK)]
        self._channel = grpc.insecure_channel(address, options=ALONE)
        self._fragments, self._start, self._done = fragments, threading.Event(), threading.Event()
        self.welcome, self.bytes, self.refused = threading.Event(), sum(map(len, payloads)), 0
        self.owned, self.error = 0, ""
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def go(self) -> None:
        self._start.set()

    def _ups(self) -> Iterator[wire.Up]:
        yield wire.Up(hello=self._hello)
        self._start.wait()
        yield from self._messages
        self._done.wait()

    def _run(self) -> None:
        try:
            for down in calls.GatewayStub(self._channel).Append(self._ups()):
                self.welcome.set()
                self.refused += len(down.refusals)
                self.owned = max(self.owned, down.owned)
                if self.owned == self._fragments:
                    break
        except grpc.RpcError as error:
            self.error = str(error.code())
        finally:
            self._done.set()
            self.welcome.set()
            self._channel.close()


def push(address: str, run: str, clients: int, fragments: int) -> dict[str, float]:
    """Connect, then push everything; gives the rate from the first message to the last mark that it is durable."""
    all_of_them = [Client(address, run, number, fragments) for number in range(clients)]
    for client in all_of_them:
        client.welcome.wait()
    begun = time.perf_counter()
    for client in all_of_them:
        client.go()
    for client in all_of_them:
        client.thread.join()
    seconds = time.perf_counter() - begun
    if errors := {client.error for client in all_of_them if client.error}:
        raise RuntimeError(", ".join(errors))
    return {
        "steps_per_second": sum(client.owned for client in all_of_them) * STEPS / seconds,
        "megabytes_per_second": sum(client.bytes for client in all_of_them) / seconds / 1e6,
        "refused": sum(client.refused for client in all_of_them), "seconds": seconds,
    }  # fmt: skip


def resident(pid: int) -> float:
    """Give the resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--fragments", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pid", type=int, default=0, help="whose memory is looked at after each round")
    given = parser.parse_args()
    rounds, memory = [], []
    for _ in range(given.rounds):
        rounds.append(push(given.address, given.run, given.clients, given.fragments))
        memory.append(resident(given.pid or 1))
    middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    steps = given.rounds * given.clients * given.fragments * STEPS
    print(json.dumps(middle | {"steps": steps, "megabytes": memory}), flush=True)


if __name__ == "__main__":
    main()
