"""A gateway that stays, and programs that reach it through proxies which all do something else: for tests of both."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateways import PATIENCE, Served, eventually, gateway
from live_audit import Audit
from live_client import CONFIG, Did, Program
from proxy import Proxy

PLAIN = ("delay", "drop", "halve", "repeat", "swallow")  # on these connections bytes may be lost and never changed
SECURE = ("duplicate", "reorder")  # or they may, and TLS says so


@dataclass
class Field:
    """A gateway that stays, and programs that reach it through proxies."""

    home: Path
    served: Served
    audit: Audit
    proxies: dict[str, Proxy]
    programs: dict[str, Program]


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def certified(folder: Path) -> list[str]:
    """Give the options of a gateway with a certificate of its own."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
    named = ["-subj", "/CN=farfield", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"]
    openssl(folder, "req", "-x509", *key, "-out", "cert.pem", *named)
    (folder / "server.toml").write_text(
        f'grpc = "127.0.0.1:0"\nhttp = ""\n[tls]\ncert = "{folder}/cert.pem"\nkey = "{folder}/key.pem"\n'
    )
    return ["--config", str(folder / "server.toml")]


def fielded(folder: Path, ways: tuple[str, ...], *, secure: bool) -> Iterator[Field]:
    """Begin with all proxies at the same time: most of what they do takes time, and no work."""
    folder.mkdir()
    options = certified(folder) if secure else []
    tls = {"tls": str(folder / "cert.pem")} if secure else {}
    with gateway(folder / "home", *options, doors=1 if secure else 2) as served:
        proxies = {way: Proxy(served.grpc, seed=number) for number, way in enumerate(ways)}
        programs = {
            way: Program(folder, proxy.address, number=number, config=CONFIG, flush=0.2, wait=PATIENCE, **tls)
            for number, (way, proxy) in enumerate(proxies.items())
        }
        try:
            for program in programs.values():
                program.until(lambda now: now["owned"] > 0, "the first fragment")
            audit = Audit(folder / "home" / "runs" / "live")
            for way, proxy in proxies.items():
                proxy.way = way
            yield Field(folder, served, audit, proxies, programs)
            audit.close()
        finally:
            for program in programs.values():
                program.end()
            for proxy in proxies.values():
                proxy.close()


def survived(field: Field, way: str, times: int) -> Did:
    """See that it delivers and hears of versions while its proxy does that, and again when it does not any more."""
    proxy, program = field.proxies[way], field.programs[way]
    eventually(lambda: proxy.happened >= times, f"{times} times {way}", PATIENCE + times)
    before = program.now
    program.until(lambda now: now["owned"] > before["owned"], "more experience")
    program.until(lambda now: now["newest"] > before["newest"], "a newer version")
    did = stopped(proxy, program)
    assert did.counters["reconnects"] > 0 or way == "delay"
    field.audit.check(did, alone=False)
    return did


def stopped(proxy: Proxy, program: Program) -> Did:
    """Let the network be good again, and a program deliver what it still has."""
    proxy.way = "forward"
    return program.stop()
