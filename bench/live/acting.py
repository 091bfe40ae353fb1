"""Sixty-four clients that let the gateway act for them, one decision after the other: streams, then single calls.

Usage: acting.py ADDRESS RUN [--clients 64] [--seconds 5]; prints one line of JSON.
"""

import argparse
import asyncio
import json
import time

import grpc
import numpy as np
from ingest import ALONE, SPEC

from farfield import columns
from farfield.canonical import to_json
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

STREAM = bytes(range(16))
PATIENCE = 60.0  # seconds until the first version


def request(number: int, decision: int, *, hello: wire.Hello | None = None) -> wire.ActRequest:
    obs = columns.write({"obs": np.full((1, 8), 0.01 * number, np.float32)})
    return wire.ActRequest(hello=hello, id=decision, observations=obs, stream=STREAM, decision=decision)


async def by_stream(stub: calls.GatewayStub, hello: wire.Hello, number: int, end: float) -> int:
    call, count = stub.Act(), 0
    await call.write(request(number, 0, hello=hello))
    while True:
        reply = await call.read()
        if reply.error:
            raise RuntimeError(reply.error)
        count += 1
        if time.perf_counter() > end:
            await call.done_writing()
            return count
        await call.write(request(number, count))


async def by_call(stub: calls.GatewayStub, hello: wire.Hello, number: int, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        reply = await stub.ActOnce(request(number, count, hello=hello))
        if reply.error:
            raise RuntimeError(reply.error)
        count += 1
    return count


async def first_version(address: str, hello: wire.Hello) -> None:
    """Wait until there is something to decide with."""
    end = time.monotonic() + PATIENCE
    async with grpc.aio.insecure_channel(address) as channel:
        while True:
            try:
                await calls.GatewayStub(channel).ActOnce(request(0, 0, hello=hello))
                return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                    raise
            await asyncio.sleep(0.1)


async def rate(address: str, hello: wire.Hello, clients: int, seconds: float, way: str) -> float:
    channels = [grpc.aio.insecure_channel(address, options=ALONE) for _ in range(clients)]
    stubs = [calls.GatewayStub(channel) for channel in channels]
    work = {"stream": by_stream, "unary": by_call}[way]
    begun = time.perf_counter()
    counts = await asyncio.gather(*(work(stub, hello, n, begun + seconds) for n, stub in enumerate(stubs)))
    took = time.perf_counter() - begun
    await asyncio.gather(*(channel.close() for channel in channels))
    return sum(counts) / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    hello = wire.Hello(run=given.run, policy="main", spec=to_json(SPEC), client="bench", protocol=1)
    asyncio.run(first_version(given.address, hello))
    found: dict[str, list[float]] = {"stream": [], "unary": []}
    for _ in range(3):
        for way, rates in found.items():
            rates.append(asyncio.run(rate(given.address, hello, given.clients, given.seconds, way)))
    middle = {way: sorted(rates)[len(rates) // 2] for way, rates in found.items()}
    print(json.dumps({**middle, "ratio": middle["stream"] / middle["unary"]}), flush=True)


if __name__ == "__main__":
    main()
