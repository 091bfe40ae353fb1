"""Settings and files of runs in, the gateway's process out: it lives until it is told to stop."""

import asyncio
import fcntl
import logging
import os
import resource
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import msgspec

from farfield import wiring
from farfield.errors import ConflictError, FarfieldError
from farfield.gateway import doors, journal
from farfield.gateway.addresses import Address
from farfield.gateway.learners import Learners
from farfield.gateway.runs import Runs, finished
from farfield.gateway.settings import Settings
from farfield.learning import runtime
from farfield.serving import rest, rpc
from farfield.serving.desk import Desk, Status
from farfield.serving.host import Host
from farfield.serving.hosted import Limits
from farfield.serving.tokens import Tokens
from farfield.telemetry import metrics
from farfield.weights import folder as files

AT_ONCE = 4  # runs that are opened at the same time
FILES = 65536
GRACE = 2.0  # seconds that calls get to end
log = logging.getLogger("farfield.gateway")
Say = Callable[[str, str], None]


def serve(settings: Settings, run_files: Sequence[Path], say: Say, *, json: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; `say` is told each door and where it is. Gives the exit code."""
    settings.addresses()  # refused before anything is touched
    home = wiring.home_folder(settings.home).absolute()
    with files.explained(home):
        (home / "runs").mkdir(parents=True, exist_ok=True)
    runtime.keep_memory()
    _allow_many_sockets()
    journal.begin(settings.log_level, json=json)
    with locked(home):
        return asyncio.run(_live(home, settings, run_files, say))


async def _live(home: Path, settings: Settings, run_files: Sequence[Path], say: Say) -> int:
    return await Gateway(home, settings, say).live(run_files)


class Gateway:
    """Everything that lives as long as the process."""

    def __init__(self, home: Path, settings: Settings, say: Say) -> None:
        self._settings, self._say = settings, say
        self._stop, self._opened, self._code = asyncio.Event(), False, 0
        self._tokens = Tokens(settings.tokens)
        self._loop = asyncio.get_running_loop()
        self._learners = Learners(ended=finished, lost=self._lost)
        self._runs = Runs(home, settings, self._learners)
        self._host = Host(self._runs.open, self._tokens, clients=settings.clients)

    async def live(self, run_files: Sequence[Path]) -> int:
        """Open the doors, then the runs; when told to stop, close both, and then the learners."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._asked, signal.Signals(number).name)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, self._learners.stop)
            stack.push_async_callback(asyncio.to_thread, self._host.close)
            for file in run_files:
                await asyncio.to_thread(self._runs.take, file)
            grpc_at, http_at = self._settings.addresses()
            if grpc_at:
                await self._open_grpc(stack, grpc_at)
            if http_at:
                await self._open_http(stack, http_at)
            self._warn(grpc_at, http_at)
            opening = asyncio.create_task(self._open_runs())
            await self._stop.wait()
            self._opened = False
            opening.cancel()
        log.info("stopped")
        return self._code

    async def _open_grpc(self, stack: AsyncExitStack, address: Address) -> None:
        settings = self._settings
        limits = Limits(payload=settings.limit, quota=settings.quota)
        credentials = doors.grpc_credentials(settings.tls)
        server = await rpc.serve(self._host, str(address), credentials=credentials, limits=limits)
        stack.push_async_callback(server.stop, GRACE)
        self._say("grpc", server.address)

    async def _open_http(self, stack: AsyncExitStack, address: Address) -> None:
        settings = self._settings
        app = rest.make(
            Desk(self._host, self._tokens, self._status), limit=settings.quota, ready=lambda: self._opened,
            local=address.local and self._tokens.open and not settings.insecure,
        )  # fmt: skip
        door = doors.Http(app, address, settings.tls, clients=settings.clients)
        stack.push_async_callback(door.stop)
        door.start()
        self._say("http", f"{'https' if settings.tls else 'http'}://{door.address}")

    async def _open_runs(self) -> None:
        """Open every run of the home; one that cannot be opened holds no other up."""
        places = asyncio.Semaphore(AT_ONCE)

        async def open_one(run: str) -> None:
            async with places:
                try:
                    await asyncio.to_thread(self._host.open, run)
                except (FarfieldError, OSError) as error:
                    log.error("run %s cannot be opened: %s", run, error)

        names = await asyncio.to_thread(self._runs.names)
        await asyncio.gather(*map(open_one, names))
        self._opened = True
        log.info("ready: %d runs", len(self._host.open_runs()))

    def _status(self, run: str) -> Status:
        """Say how a run's learner is, and what it wrote last."""
        state = self._learners.state(run)
        if state is None:
            return Status("unknown")
        row = metrics.newest(self._runs.folder / run)
        return Status(state.condition, msgspec.to_builtins(state), row)

    def _warn(self, *addresses: Address | None) -> None:
        far = [address for address in addresses if address and not address.local]
        if far and self._tokens.open:
            log.warning("anybody who reaches %s may do everything (insecure)", ", ".join(map(str, far)))
        elif far and self._settings.tls is None:
            log.warning("tokens travel in the open to %s: add [tls]", ", ".join(map(str, far)))

    def _asked(self, name: str) -> None:
        """Stop with everything in order; asked again, at once."""
        if self._stop.is_set():
            os._exit(130)  # learners die with their parent
        log.info("stopping (%s); once more stops at once", name.lower())
        self._stop.set()

    def _lost(self) -> None:
        """Stop, since nobody looks after learners any more; the log says why."""
        self._code = 1
        self._loop.call_soon_threadsafe(self._stop.set)


def _allow_many_sockets() -> None:
    """Take more open files where this process may have them: every client is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def locked(home: Path) -> Generator[None]:
    """Hold the home: one gateway at a time, and the lock goes with its process, however that ends."""
    path = home / "gateway.lock"
    with files.explained(path), path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise ConflictError(
                f"{home} belongs to the gateway with process id {who}: stop that one first, or choose another --home"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
