"""A gateway of its own process, on free ports of loopback, for tests."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 90.0  # seconds that anything may take on a machine that is busy


def eventually(true: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> Any:
    """Wait for what must come, and give it."""
    deadline = time.monotonic() + seconds
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.02)


def exists(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Answer:
    """What came over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A gateway that runs."""

    process: "subprocess.Popen[str]"
    folder: Path  # of its log
    doors: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def grpc(self) -> str:
        return self.doors["grpc"]

    @property
    def http(self) -> str:
        return self.doors["http"]

    @property
    def log(self) -> str:
        return (self.folder / "err").read_text()

    def ask(
        self, path: str, body: Any = None, *, token: str = "", tls: ssl.SSLContext | None = None, method: str = "",
        **headers: str,
    ) -> Answer:  # fmt: skip
        """Call it over HTTP: JSON unless the body is bytes."""
        where = urlsplit(self.http)
        if where.scheme == "https":
            line: http.client.HTTPConnection = http.client.HTTPSConnection(where.netloc, timeout=60, context=tls)
        else:
            line = http.client.HTTPConnection(where.netloc, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        if body is not None:
            sent.setdefault("content-type", "application/x-protobuf" if isinstance(body, bytes) else "application/json")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            line.request(method or ("GET" if body is None else "POST"), path, body=data, headers=sent)
            reply = line.getresponse()
            return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            line.close()

    def run(self, name: str) -> Any:
        """Give what REST says of a run."""
        return self.ask(f"/api/v1/runs/{name}").json

    def kill(self) -> None:
        """Kill it as an out-of-memory killer would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Ask it to stop; gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def learner(self, run: str) -> int:
        """Wait for the learner of a run, and give its process id."""
        return eventually(lambda: (self.run(run).get("learner") or {}).get("pid"), f"the learner of {run}")


def start(home: Path, *options: str, environment: dict[str, str] | None = None, doors: int = 2) -> Served:
    """Start one and wait until its doors are open, or until it has ended."""
    folder = home / f"gateway-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    words = [sys.executable, "-m", "farfield", "serve", "--home", str(home), *options]
    for door in ("--grpc", "--http"):
        if door not in options and "--config" not in options:
            words += [door, "127.0.0.1:0"]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, cwd=folder,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    served = Served(process, folder)

    def opened() -> bool:
        lines = (folder / "out").read_text().splitlines(keepends=True)
        served.doors = dict(line.split() for line in lines if line.endswith("\n"))
        return len(served.doors) == doors or process.poll() is not None

    eventually(opened, "the gateway")
    return served


@contextmanager
def gateway(home: Path, *options: str, environment: dict[str, str] | None = None, doors: int = 2) -> Generator[Served]:
    """Have one for a while; its learners go with it."""
    served = start(home, *options, environment=environment, doors=doors)
    try:
        assert served.process.poll() is None, served.log
        yield served
    finally:
        if served.process.poll() is None:
            served.kill()
