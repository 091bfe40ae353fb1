"""How a live run is killed in tests: its gateway, at moments that a seed chooses, under programs that go on."""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from gateways import Served, eventually, start
from live_audit import Audit
from live_client import CONFIG, Program


def free_port() -> int:
    """Find a port that nobody listens on, and that nobody is given who asks for any: it must be free again later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as door, suppress(OSError):
            door.bind(("127.0.0.1", port))
            return port


class Killed:
    """A gateway on one address that dies again and again."""

    def __init__(self, home: Path, *options: str, environment: dict[str, str] | None = None, doors: int = 2) -> None:
        self._home, self._environment, self._doors = home, environment, doors
        self.address = f"127.0.0.1:{free_port()}"
        self._options = ("--grpc", self.address, *options)
        self.served: Served | None = None
        self.starts = 0

    def start(self) -> Served:
        """Start the next one."""
        self.served = start(self._home, *self._options, environment=self._environment, doors=self._doors)
        assert self.served.process.poll() is None, self.served.log
        self.starts += 1
        return self.served

    def __repr__(self) -> str:
        """Say how it is."""
        served = self.served
        return "no gateway" if served is None else f"gateway {served.pid} {served.process.poll()}: {served.log}"

    def kill(self) -> None:
        """Kill it; its learner goes with it."""
        if self.served is not None and self.served.process.poll() is None:
            self.served.kill()

    def __enter__(self) -> "Killed":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def killed_at_random(
    folder: Path, *, kills: int, programs: int, seed: int, config: dict[str, object] = CONFIG
) -> Audit:
    """Kill a gateway under programs: each stands for a while, for one fragment, or until its learner has a version."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        gateway = stack.enter_context(Killed(folder / "home", "--http", "", doors=1))
        lives = []
        for number in range(programs):
            kept = {"spool": str(folder / f"spool-{number}")} if number % 2 else {}
            core = "numpy" if number % 4 == 3 else ""
            program = Program(folder, gateway.address, number=number, config=CONFIG, flush=0.2, core=core, **kept)
            stack.callback(program.end)
            lives.append(program)
        for program in lives:
            program.until(lambda now: now["owned"] >= 1, "the first fragment")
        audit = Audit(folder / "home" / "runs" / "live")
        stack.callback(audit.close)
        for turn in range(kills):
            kind = rng.choice(["at once", "soon", "later", "learned"]) if turn else "learned"
            try:
                turn_of(kind, rng, audit, lives)
            except AssertionError as error:
                raise AssertionError(f"turn {turn}, {kind}: {error}; {gateway}") from error
            gateway.kill()
            gateway.start()
        dids = [program.stop() for program in lives]
        audit.check(*dids)
        used = audit.check_learned()
        assert gateway.starts == kills + 1
        assert sum(did.counters["reconnects"] for did in dids) >= kills
        print(  # noqa: T201 - with -s, what it came to
            f"{kills} kills, {len(dids)} programs, {sum(len(did.actions) for did in dids)} steps in "
            f"{len(audit.stored)} fragments, {used} of them learned from"
        )
    return audit


def turn_of(kind: str, rng: random.Random, audit: Audit, lives: list[Program]) -> None:
    """Wait until it is time for the next kill."""
    before = audit.look()
    match kind:
        case "soon":
            eventually(lambda: audit.look() > before, "one more fragment")
        case "later":
            more = rng.randrange(20, 200)
            eventually(lambda: audit.look() > before + more, "more fragments")
        case "learned":
            newest = max(program.now["newest"] for program in lives)
            lives[0].until(lambda now: now["newest"] > newest, "a newer version")
        case _:
            pass
