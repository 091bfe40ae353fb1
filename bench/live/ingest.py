"""Thirty-two clients that push fragments of LunarLander at once, and wait until all are durable: one line of JSON.

Everything is encoded before the clock starts, so that the client costs little. Usage: ingest.py ADDRESS RUN
[--clients 32] [--fragments 500]
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator
from secrets import token_hex

import grpc
import numpy as np

from farfield.canonical import spec_hash, to_json
from farfield.codec import encode_fragment
from farfield.types import Field, Fragment, Kind, Spec
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

STEPS, CHUNK = 128, 16  # rows of a fragment; fragments of one message
SPEC = Spec((Field("obs", Kind.BOX, "float32", (8,)),), (Field("action", Kind.DISCRETE, "int64", (), (4,)),))


def columns(rng: np.random.Generator) -> dict[str, np.ndarray]:
    flags = {name: np.zeros((STEPS, 1), bool) for name in ("terminated", "truncated", "first")}
    return {
        "obs": rng.standard_normal((STEPS + 1, 1, 8)).astype(np.float32), "action": rng.integers(0, 4, (STEPS, 1)),
        "reward": rng.standard_normal((STEPS, 1)).astype(np.float32), "terminated": flags["terminated"],
        "truncated": flags["truncated"], "valid": np.ones((STEPS, 1), bool), "first": flags["first"],
        "log_prob": np.full((STEPS, 1), -1.4, np.float32),
    }  # fmt: skip


class Client:
    """One stream of fragments, all ready to go."""

    def __init__(self, address: str, run: str, number: int, fragments: int) -> None:
        stream, spec, rows = token_hex(16), spec_hash(SPEC), columns(np.random.default_rng(number))
        payloads = [
            encode_fragment(Fragment(run, stream, seq, 0, 1, spec, rows, decision=seq * STEPS))
            for seq in range(fragments)
        ]
        self._hello = wire.Hello(run=run, policy="main", spec=to_json(SPEC), client=f"{number}", protocol=1)
        self._messages = [wire.Up(payloads=payloads[n : n + CHUNK]) for n in range(0, fragments, CHUNK)]
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._fragments, self._start = fragments, threading.Event()
        self.welcome, self.bytes, self.refused = threading.Event(), sum(map(len, payloads)), 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def go(self) -> None:
        self._start.set()

    def _ups(self) -> Iterator[wire.Up]:
        yield wire.Up(hello=self._hello)
        self._start.wait()
        yield from self._messages
        self._done = threading.Event()
        self._done.wait()

    def _run(self) -> None:
        for down in calls.GatewayStub(self._channel).Append(self._ups()):
            self.welcome.set()
            self.refused += len(down.refusals)
            if down.owned == self._fragments:
                self._done.set()
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--fragments", type=int, default=500)
    given = parser.parse_args()
    clients = [Client(given.address, given.run, number, given.fragments) for number in range(given.clients)]
    for client in clients:
        client.welcome.wait()
    begun = time.perf_counter()
    for client in clients:
        client.go()
    for client in clients:
        client.thread.join()
    seconds, count = time.perf_counter() - begun, given.clients * given.fragments
    print(json.dumps({
        "steps_per_second": count * STEPS / seconds,
        "megabytes_per_second": sum(client.bytes for client in clients) / seconds / 1e6,
        "refused": sum(client.refused for client in clients), "seconds": seconds,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
