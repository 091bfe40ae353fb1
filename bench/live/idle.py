"""A thousand clients that connect, follow versions and send nothing; one line of JSON once all are in.

Usage: idle.py ADDRESS RUN [--clients 1000] [--seconds 5]
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator

import grpc
from ingest import SPEC

from farfield.canonical import to_json
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls


async def client(address: str, run: str, number: int, entered: list[int], over: asyncio.Event) -> None:
    hello = wire.Hello(run=run, policy="main", spec=to_json(SPEC), client=f"idle-{number}", protocol=1)

    async def ups() -> AsyncIterator[wire.Up]:
        yield wire.Up(hello=hello)
        await over.wait()

    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub = calls.GatewayStub(channel)
        versions = stub.Versions(wire.VersionsRequest(hello=hello))
        append = stub.Append(ups())
        await asyncio.gather(versions.read(), append.read())
        entered.append(number)
        await over.wait()


async def measure(address: str, run: str, clients: int, seconds: float) -> int:
    entered: list[int] = []
    over = asyncio.Event()
    tasks = [asyncio.create_task(client(address, run, number, entered, over)) for number in range(clients)]
    end = asyncio.get_running_loop().time() + 120
    while len(entered) < clients and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.1)
    await asyncio.sleep(seconds)
    still = sum(not task.done() for task in tasks)
    over.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    return min(len(entered), still)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    count = asyncio.run(measure(given.address, given.run, given.clients, given.seconds))
    print(json.dumps({"connected": count}), flush=True)


if __name__ == "__main__":
    main()
