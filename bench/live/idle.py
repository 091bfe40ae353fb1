"""A thousand clients that connect, follow versions and send nothing; one line of JSON once all are in.

Usage: idle.py ADDRESS RUN [--clients 1000] [--seconds 5]
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from ingest import ALONE, SPEC, push

from farfield.canonical import to_json
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls


async def client(address: str, run: str, number: int, entered: list[int], over: asyncio.Event) -> None:
    hello = wire.Hello(run=run, policy="main", spec=to_json(SPEC), client=f"idle-{number}", protocol=1)

    async def ups() -> AsyncIterator[wire.Up]:
        yield wire.Up(hello=hello)
        await over.wait()

    async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
        stub = calls.GatewayStub(channel)
        versions = stub.Versions(wire.VersionsRequest(hello=hello))
        append = stub.Append(ups())
        await asyncio.gather(versions.read(), append.read())
        entered.append(number)
        ends = [asyncio.create_task(work) for work in (listen(versions), listen(append), over.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()


async def listen(call: Any) -> None:
    """Read for as long as the server goes on."""
    while await call.read() is not grpc.aio.EOF:
        pass


async def measure(address: str, run: str, clients: int, seconds: float) -> dict[str, float]:
    """Connect all, see that they stay, and that the gateway still takes experience from somebody else."""
    entered: list[int] = []
    over, begun = asyncio.Event(), time.perf_counter()
    tasks = [asyncio.create_task(client(address, run, number, entered, over)) for number in range(clients)]
    end = asyncio.get_running_loop().time() + 120
    while len(entered) < clients and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.1)
    took = time.perf_counter() - begun
    await asyncio.sleep(seconds)
    pushed = await asyncio.to_thread(push, address, run, 1, 64)
    still = sum(not task.done() for task in tasks)
    over.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    rate = pushed["steps_per_second"]
    return {"connected": min(len(entered), still), "seconds": took, "steps_per_second_of_another": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    found = asyncio.run(measure(given.address, given.run, given.clients, given.seconds))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
