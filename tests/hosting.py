"""A gateway without processes: runs on a log of any kind, served on a loopback port by an event loop in a thread."""

import asyncio
from concurrent.futures import Future
from contextlib import contextmanager
from hashlib import sha256
from threading import Thread

import grpc
import numpy as np

from farfield.canonical import spec_hash
from farfield.codec import encode_announcement, encode_fragment, write_hello
from farfield.errors import ConflictError, MissingError
from farfield.experience.noise import draw
from farfield.serving import rpc
from farfield.serving.host import Host
from farfield.serving.hosted import UPDATES, Facts, Hosted, Limits
from farfield.serving.tokens import Tokens
from farfield.transports import disk, memory
from farfield.types import (
    Announcement,
    Field,
    Fragment,
    Head,
    Hello,
    Kind,
    Network,
    Node,
    Spec,
    Tensor,
    TensorRef,
    Version,
)
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

SPEC = Spec(
    (Field("obs", Kind.BOX, "float32", (4,), low=(-10.0,), high=(10.0,)),),
    (Field("action", Kind.DISCRETE, "int64", (), (3,)),),
)
NETWORK = Network(
    nodes=(
        Node("obs", "input", ("obs",), options={"shape": [4], "dtype": "float32"}),
        Node("logits", "dense", ("obs",), {"kernel": "logits/kernel", "bias": "logits/bias"}),
        Node("value", "dense", ("obs",), {"kernel": "value/kernel", "bias": "value/bias"}),
    ),
    tensors={
        "logits/kernel": Tensor((4, 3)), "logits/bias": Tensor((3,)),
        "value/kernel": Tensor((4, 1)), "value/bias": Tensor((1,)),
    },
    heads=(Head("action", "categorical", ("logits",)),),
    outputs={"value": "value"},
)  # fmt: skip
FACTS = Facts(seed=7, steps=8, window=2, credit_window=0.0)
STREAM = "ab" * 16


def version(number=1, *, run="game", attempt=1, scale=None):
    """A version and the tensors that acting needs; `scale` changes the kernel alone."""
    scale = float(number) if scale is None else scale
    weights = {
        "logits/kernel": np.full((4, 3), scale, np.float32),
        "logits/bias": np.asarray([0.0, 0.5, 0.25], np.float32),
    }
    critic = {"value/kernel": np.zeros((4, 1), np.float32), "value/bias": np.zeros(1, np.float32)}
    tensors = {
        name: TensorRef(array.dtype.name, array.shape, sha256(array.tobytes()).hexdigest())
        for name, array in (weights | critic).items()
    }
    return Version(run, number, attempt, None, 0, SPEC, NETWORK, tensors), weights


def announce(log, number=1, *, names=None, full=True, settled=None, **options):
    """Publish as a learner does."""
    made, weights = version(number, **options)
    sent = {name: weights[name] for name in (weights if names is None else names)}
    log.append(UPDATES, encode_announcement(Announcement(made, sent, full, settled or {})), key="game").result(20)
    return made


def columns(steps=8, lanes=1, *, scored=True):
    found = {
        "obs": np.random.default_rng(0).random((steps + 1, lanes, 4), np.float32),
        "action": np.ones((steps, lanes), np.int64),
        "reward": np.ones((steps, lanes), np.float32),
        "terminated": np.zeros((steps, lanes), bool),
        "truncated": np.zeros((steps, lanes), bool),
        "valid": np.ones((steps, lanes), bool),
        "first": np.zeros((steps, lanes), bool),
        "episode/return": np.zeros(0, np.float32),
        "episode/length": np.zeros(0, np.int32),
    }
    return found | ({"log_prob": np.full((steps, lanes), -1.0, np.float32)} if scored else {})


def fragment(seq=0, *, stream=STREAM, run="game", spec=SPEC, source="", decision=None, **changes):
    """A good fragment, or one with columns changed or (None) left out."""
    steps, lanes = changes.pop("steps", 8), changes.pop("lanes", 1)
    found = columns(steps, lanes, scored=not source) | {name.replace("__", "/"): it for name, it in changes.items()}
    kept = {name: column for name, column in found.items() if column is not None}
    first = seq * steps * lanes if decision is None else decision
    return Fragment(run, stream, seq, 1, 1, spec_hash(spec), kept, decision=first, source=source)


def payload(seq=0, **options):
    return encode_fragment(fragment(seq, **options))


def hello(run="game", **options):
    return write_hello(Hello(run, **{"spec": SPEC, "client": "test"} | options))


class Runs:
    """Opens runs on logs that stay when the gateway goes; `kind` is memory or disk."""

    def __init__(self, folder, kind="memory", *, room=64 << 20, limits=None, create=("game",), spec=None):
        self.folder, self.kind, self.room, self.limits = folder, kind, room, limits or Limits()
        self.known = set(create)
        self.logs, self.pinned = {}, {}
        self.spec = spec

    def log(self, run):
        if self.kind == "disk":
            return disk.make(disk.Config(str(self.folder / run), room=self.room, wait=0.0))
        if run not in self.logs:
            self.logs[run] = memory.make(memory.Config(room=self.room, wait=0.0))
        return Kept(self.logs[run])

    def open(self, run, config):
        if config is None and run not in self.known:
            raise MissingError(f"there is no run {run!r}: send a config to create it")
        self.known.add(run)
        return Hosted(
            run, log=self.log(run), spec=self.pinned.get(run, self.spec), pin=lambda spec: self.pin(run, spec),
            facts=FACTS, limits=self.limits, draw=draw,
        )  # fmt: skip

    def pin(self, run, spec):
        if run in self.pinned:
            raise ConflictError(f"run {run!r} has its spec already")
        self.pinned[run] = spec


class Kept:
    """A memory log that outlives those who close it."""

    def __init__(self, log):
        self.append, self.read, self.note = log.append, log.read, log.note

    def close(self):
        pass


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, coroutine, timeout=30):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextmanager
def gateway(runs, *, address="127.0.0.1:0", tokens=(), clients=100, **options):
    """Serve; gives (host, address)."""
    loop = Loop()
    host = Host(runs.open, Tokens(tokens), clients=clients)
    server = loop.do(rpc.serve(host, address, limits=runs.limits, **options))
    try:
        yield host, server.address
    finally:
        loop.do(server.stop(2.0))
        host.close()
        loop.close()


@contextmanager
def dialled(address, token="", credentials=None):
    """A stub whose calls carry the token."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0),
               ("grpc.max_send_message_length", -1)]  # fmt: skip
    make = grpc.insecure_channel if credentials is None else grpc.secure_channel
    channel = make(*([address] if credentials is None else [address, credentials]), options=options)
    try:
        yield calls.GatewayStub(channel)
    finally:
        channel.close()


def bearer(token):
    return (("authorization", f"Bearer {token}"),) if token else ()


class Sender:
    """An Append call, used step by step."""

    def __init__(self, stub, *, first=None, token="", **options):
        self._ups = []
        self._more = __import__("queue").SimpleQueue()
        self._more.put(wire.Up(hello=first or hello(**options)))
        self.call = stub.Append(iter(self._more.get, None), metadata=bearer(token), timeout=60)
        self.owned, self.refusals, self.settled = 0, {}, {}

    def welcome(self):
        return next(self.call).welcome

    def send(self, *payloads, probe=b""):
        self._more.put(wire.Up(payloads=payloads, probe=probe))

    def wait(self, owned):
        """Read answers until so many are owned."""
        while self.owned < owned:
            self.read()

    def read(self):
        down = next(self.call)
        self.owned = down.owned
        self.refusals |= {refusal.index: refusal for refusal in down.refusals}
        self.settled |= {mark.stream.hex(): mark.fragments for mark in down.settled}

    def end(self):
        self._more.put(None)
        for down in self.call:
            self.owned = down.owned


def failed(error):
    """A future that failed."""
    future = Future()
    future.set_exception(error)
    return future
