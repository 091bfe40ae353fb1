"""A gateway in memory for tests of clients: the whole service, and switches for what may go wrong with it."""

import queue
import time
from concurrent import futures
from contextlib import suppress
from threading import Condition, Thread
from types import SimpleNamespace

import grpc
import numpy as np

from farfield import codec, columns
from farfield.canonical import to_json
from farfield.experience.noise import draw
from farfield.learning import networks
from farfield.serving import policies
from farfield.types import Announcement, Field, Kind, Spec, TensorRef, Version, Welcome, acting, noise_blocks
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

SPEC = Spec((Field("obs", Kind.BOX, "float32", (8,)),), (Field("action", Kind.DISCRETE, "int64", (), (4,)),))


def network_of(spec, style="policy", **config):
    return networks.build(networks.Config(**config), spec, style=style)


def version_of(spec, network, number=0, *, seed=1, attempt=1, run="r", weights=None):
    """A version with its weights and right hashes."""
    from hashlib import sha256

    weights = weights or networks.initialise(network, seed=seed)
    refs = {
        name: TensorRef(value.dtype.name, value.shape, sha256(np.ascontiguousarray(value).data).hexdigest())
        for name, value in weights.items()
    }
    return Version(run, number, attempt, None, 0, spec, network, refs), weights


def until(condition, timeout=20.0, what="it"):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        time.sleep(0.005)


class SmallGateway:
    """Keeps everything in lists; `address` is the same after `stop` and `start`."""

    def __init__(
        self, address, spec=SPEC, *, credentials=None, steps=16, token="", window=2, quota=1 << 20, limit=1 << 22
    ):
        self.address, self.spec, self.credentials = address, spec, credentials
        self.token, self.steps, self.window, self.quota, self.limit = token, steps, window, quota, limit
        self.payloads = []  # owned, in their order
        self.known = set()
        self.hellos, self.probes, self.acts, self.versions_sent = [], 0, 0, []
        self.version = None  # (Version, weights)
        self.settled = {}
        self.changed = Condition()
        self.refuse_payload = lambda payload: ""
        self.refuse_call = None  # (status, text)
        self.rubbish = None  # name of a call that answers nonsense
        self.hold = False  # whether ownership is kept back
        self.deaf = False  # whether Act is never answered
        self.server = None

    def start(self):
        pool = futures.ThreadPoolExecutor(64)
        self.server = grpc.server(pool, options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)])
        routes = SimpleNamespace(
            Greet=self.greet, Append=self.append, Versions=self.versions, Act=self.act, ActOnce=None, Credit=self.credit
        )
        calls.add_GatewayServicer_to_server(routes, self.server)
        host, _, port = self.address.rpartition(":")
        if self.credentials is not None:
            port = self.server.add_secure_port(self.address, self.credentials)
        else:
            port = self.server.add_insecure_port(self.address)
        if not self.address.startswith("unix:"):
            self.address = f"{host}:{port}"
        self.server.start()
        return self

    def stop(self):
        if self.server is not None:
            self.server.stop(None).wait()
            self.server = None
        with self.changed:
            self.changed.notify_all()

    __enter__ = start

    def __exit__(self, *_):
        self.stop()

    def publish(self, number, *, seed=1, style="policy", attempt=1, network=None, weights=None):
        network = network or network_of(self.spec, style)
        with self.changed:
            self.version = version_of(self.spec, network, number, seed=seed, attempt=attempt, weights=weights)
            self.changed.notify_all()

    def settle(self, **marks):
        with self.changed:
            self.settled |= marks
            self.changed.notify_all()

    def fragments(self):
        return [codec.decode_fragment(p) for p in self.payloads if codec.kind_of(p) == "Fragment"]

    def credits(self):
        return [codec.decode_credit(p) for p in self.payloads if codec.kind_of(p) == "Credit"]

    def steps_owned(self):
        return sum(int(fragment.columns["valid"].sum()) for fragment in self.fragments())

    def greet(self, request, context):
        return self._admit(request, context)

    def append(self, requests, context):
        server = self.server
        yield wire.Down(welcome=self._admit(next(requests).hello, context))
        news, owned, told, streams = _news(requests, context), 0, {}, set()
        while self.server is server:
            try:
                up = news.get(timeout=0.02)
            except queue.Empty:
                up = wire.Up()
            while self.hold and self.server is server:
                time.sleep(0.005)
            if up is None or self.server is not server:
                return
            down = wire.Down(owned=owned + len(up.payloads) + bool(up.probe))
            for index, payload in enumerate(up.payloads, owned):
                if reason := self.refuse_payload(payload):
                    down.refusals.add(index=index, kind="SpecError", text=reason)
                else:
                    self._own(payload, streams)
            self.probes += bool(up.probe)
            marks = {s: n for s, n in self.settled.items() if s in streams and told.get(s) != n}
            told |= marks
            for stream, count in marks.items():
                down.settled.add(stream=bytes.fromhex(stream), fragments=count)
            if self.rubbish == "Append" and up.payloads:
                down.owned += 1000
            if down.owned != owned or marks:
                owned = down.owned
                yield down

    def _own(self, payload, streams):
        with self.changed:
            if codec.kind_of(payload) == "Fragment":
                fragment = codec.decode_fragment(payload)
                streams.add(fragment.stream)
                if fragment.name in self.known:
                    return
                self.known.add(fragment.name)
            self.payloads.append(payload)
            self.changed.notify_all()

    def versions(self, request, context):
        self._admit(request.hello, context)
        server, sent, have = self.server, None, {name: value.hex() for name, value in request.have.items()}
        while self.server is server and context.is_active():
            with self.changed:
                if self.version is None or self.version is sent:
                    self.changed.wait(0.05)
                    continue
                sent = self.version
            if self.rubbish == "Versions":
                yield wire.VersionsReply(announcement=b"\x0d\x09\x00\x00\x00rubbish")
                continue
            version, weights = sent
            names = [name for name in acting(version.network) if have.get(name) != version.tensors[name].sha256]
            have = {name: version.tensors[name].sha256 for name in acting(version.network)}
            self.versions_sent.append((version.number, sorted(names)))
            announcement = Announcement(version, {name: weights[name] for name in names}, len(names) == len(have), {})
            yield wire.VersionsReply(announcement=codec.encode_announcement(announcement))

    def act(self, requests, context):
        hello = True
        for request in requests:
            if hello:
                self._admit(request.hello, context)
                hello = False
            if self.deaf:
                continue
            if self.rubbish == "Act":
                yield wire.ActReply(id=request.id, actions=columns.write({"action": np.array([99])}))
                continue
            if self.version is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "no version yet")
            version, weights = self.version
            policy = policies.make(version.spec, version.network)
            policy.load(version, weights)
            seen, memory = columns.read(request.observations), columns.read(request.memory)
            lanes = len(next(iter(seen.values())))
            noise = None
            if request.stream:
                noise = draw(
                    noise_blocks(version.spec, version.network), seed=7, stream=request.stream.hex(),
                    first=request.decision, steps=1, lanes=lanes,
                )[0]  # fmt: skip
            choice = policy.act(seen, noise=noise, memory=memory or policy.memory(lanes))
            scored = None if noise is None else columns.write({"l": policy.log_prob(choice.logits, choice.action)})[0]
            self.acts += 1
            yield wire.ActReply(
                id=request.id, actions=columns.write(choice.action), memory=columns.write(choice.memory),
                log_prob=scored, version=version.number, attempt=version.attempt,
            )  # fmt: skip

    def credit(self, request, context):
        self._admit(request.hello, context)
        for payload in request.payloads:
            self._own(payload, set())
        return wire.CreditReply(owned=len(request.payloads))

    def _admit(self, message, context):
        if self.refuse_call is not None:
            context.abort(*self.refuse_call)
        token = dict(context.invocation_metadata()).get("authorization", "")
        if self.token and token != f"Bearer {self.token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token: ask for one")
        hello = codec.read_hello(message)
        self.hellos.append(hello)
        if hello.spec is not None and to_json(hello.spec) != to_json(self.spec):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "field 'obs': shape: expected [8], came another")
        if self.rubbish == "welcome":
            return wire.Welcome(run="r", spec=b"{rubbish")
        newest = -1 if self.version is None else self.version[0].number
        return codec.write_welcome(
            Welcome(hello.run, self.spec, 7, self.steps, self.window, self.quota, self.limit, 0.0, newest, "test")
        )


def _news(requests, context):
    """Read requests in a thread; None says that there are no more."""
    news = queue.SimpleQueue()
    context.add_callback(lambda: news.put(None))

    def read():
        with suppress(grpc.RpcError):
            for up in requests:
                news.put(up)
        news.put(None)

    Thread(target=read, daemon=True).start()
    return news
