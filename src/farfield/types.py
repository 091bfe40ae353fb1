"""The nouns of the system, as frozen data: what travels between its parts. Imports nothing of ours."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import numpy.typing as npt
from msgspec import Struct

Array = npt.NDArray[Any]
Columns = dict[str, Array]  # flat names such as "obs/camera/0"; one array each
Weights = dict[str, Array]  # tensors by name
Memory = dict[str, Array]  # recurrent node -> its state [N, …]; empty when nothing is remembered
Noise = Array  # [N, K] ready-made noise for one decision of N lanes (see experience/noise.py)
Metrics = Mapping[str, float]
Scalar = bool | int | float | str
Buffer = bytes | bytearray | memoryview
Cursor = dict[int, int]  # partition -> first offset not read yet; a missing partition is read from its start
Name = tuple[str, str, int]  # (run, stream, seq): a fragment, for ever


class Role(StrEnum):
    """What a process is there for."""

    LEARNER = "learner"
    ACTOR = "actor"


class Kind(StrEnum):
    """What the values of a field mean."""

    BOX = "box"
    DISCRETE = "discrete"  # shape (), sizes (n,); always counted from 0
    MULTI_DISCRETE = "multi_discrete"  # shape (k,), sizes (n1, …, nk)
    MULTI_BINARY = "multi_binary"  # any shape, values 0 and 1


class Field(Struct, frozen=True):
    """One named input or output of a policy; its name is its column's."""

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()  # one bound for all elements, or one for each; empty: none
    high: tuple[float, ...] = ()
    mask: str = ""  # actions: the observation column that says what is allowed

    @property
    def image(self) -> bool:
        """Whether it is pictures: height, width, channels in bytes."""
        return self.kind is Kind.BOX and self.dtype == "uint8" and len(self.shape) == 3


class Spec(Struct, frozen=True):
    """A policy's inputs and outputs. Masks are observations named "mask" or "mask/…"."""

    observations: tuple[Field, ...]
    actions: tuple[Field, ...]


class Node(Struct, frozen=True):
    """One operator of a network: where its inputs come from, and which tensors it reads by role."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()  # names of earlier nodes or of observation columns
    tensors: dict[str, str] = {}
    options: dict[str, Any] = {}


class Head(Struct, frozen=True):
    """How one action is decided from nodes.

    categorical: (logits,), one block of `sizes` each · bernoulli: (logits,) · gaussian: (mean, log_std)
    epsilon: (q, epsilon): the best action, or with probability epsilon any allowed one.
    """

    action: str
    kind: Literal["categorical", "bernoulli", "gaussian", "epsilon"]
    inputs: tuple[str, ...]


class Tensor(Struct, frozen=True):
    """What a network expects of one tensor; statistics and schedules are not trainable."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True


class Network(Struct, frozen=True):
    """An acyclic graph over a closed set of operators; nodes stand in the order in which they run."""

    nodes: tuple[Node, ...]
    tensors: dict[str, Tensor]
    heads: tuple[Head, ...] = ()
    outputs: dict[str, str] = {}  # what only learning reads, such as "value" -> its node
    memory: dict[str, tuple[int, ...]] = {}  # recurrent node -> shape of its state, without lanes


class TensorRef(Struct, frozen=True):
    """A tensor by content: what it is and the SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class Version(Struct, frozen=True):
    """A numbered, immutable set of weights with all that is needed to act with it."""

    run: str
    number: int
    attempt: int
    parent: int | None
    steps: int  # environment steps that were learned from to make it
    spec: Spec
    network: Network
    tensors: dict[str, TensorRef]


class Announcement(Struct, frozen=True):
    """What `model_updates` carries: a version, tensors that followers may lack, and what is settled."""

    version: Version
    weights: Weights
    full: bool  # all tensors that acting needs are here; otherwise those changed since the last full one
    settled: dict[str, int]  # stream -> number of its first fragments that were used or counted as not used


class Fragment(Struct, frozen=True):
    """T consecutive steps of N lanes of one stream; `(run, stream, seq)` names it for ever.

    Columns are [T, N, …]; observations (and masks) have T + 1 rows. `terminated` and `truncated` end episodes;
    `valid` is false for the pseudo-step of a next-step reset; `first` is true where an episode's first step is;
    `memory/<node>` [N, …] is the state before row 0; `final/index` [K, 2] and `final/obs…` [K, …] are last
    observations of environments that reset at once; `episode/return` and `episode/length` [K] are finished ones.
    `version` [T] is there where it changed inside: `version` of the fragment is its first, and so its oldest.
    """

    run: str
    stream: str  # 32 hexadecimal digits, drawn at a producer's start
    seq: int
    version: int
    attempt: int
    spec: str  # its hash
    columns: Columns
    decision: int = 0  # number of the first decision; row t, lane i is decision + t * N + i
    policy: str = "main"
    actor: str = ""
    source: str = ""  # who decided: empty for the policy itself, else a person, a heuristic, the host …

    @property
    def name(self) -> Name:
        """What it is called for ever."""
        return self.run, self.stream, self.seq


class Decision(NamedTuple):
    """Names one decision for ever, so that its reward can come later and from anywhere."""

    stream: str
    n: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.n}"


class Credit(Struct, frozen=True):
    """A reward that arrives after its step: for decision n of a stream; the same id again is the same credit."""

    run: str
    stream: str
    n: int
    reward: float
    mode: Literal["add", "set"]
    id: str


class Dead(Struct, frozen=True):
    """What a gateway refused."""

    reason: str
    sender: str
    time: float  # seconds since 1970
    size: int  # of what came
    payload: bytes  # cut where it was too long


class Hello(Struct, frozen=True):
    """Who calls a gateway, and what for."""

    run: str
    policy: str = "main"
    spec: Spec | None = None  # none: whatever the run has
    client: str = ""
    library: str = ""
    protocol: int = 1
    config: dict[str, Any] | None = None  # what to create the run with if there is none


class Welcome(Struct, frozen=True):
    """What a client is told when it was let in; proto/farfield/v1 explains each field."""

    run: str
    spec: Spec
    seed: int
    steps: int
    window: int
    quota: int
    limit: int
    credit_window: float
    version: int
    library: str
    created: bool = False


class Heartbeat(Struct, frozen=True):
    """A sign of life of one actor: `steps` advances unless it is stuck or waiting for its learner."""

    actor: str
    pid: int
    stream: str
    steps: int
    fragments: int
    version: int
    waiting: bool
    backend: str = ""


class Record(NamedTuple):
    """One message of a topic, and where it stands."""

    payload: Buffer
    key: str
    partition: int
    offset: int


class Share(NamedTuple):
    """Which partitions a reader takes: those with partition % of == part."""

    part: int
    of: int


class Choice(NamedTuple):
    """What a policy decided for N lanes: actions, head outputs to score them by, and the memory after."""

    action: Columns
    logits: Columns  # head input nodes by name, [N, …]; empty when acting greedily
    memory: Memory


class Tick(NamedTuple):
    """One step of all lanes."""

    obs: Columns  # [N, …] each, as the policy sees them next
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    valid: Array  # [N] bool: false where this was only a reset
    final: tuple[Array, Columns] | None  # lanes that ended and were reset at once, with their last observations


ALL = Share(0, 1)


def acting(network: Network) -> frozenset[str]:
    """Name the tensors that acting reads: what heads reach, never the critic."""
    nodes = {node.name: node for node in network.nodes}
    wanted = [name for head in network.heads for name in head.inputs]
    reached: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in nodes and name not in reached:
            reached.add(name)
            wanted.extend(nodes[name].inputs)
    return frozenset(tensor for name in reached for tensor in nodes[name].tensors.values())


def noise_blocks(spec: Spec, network: Network) -> tuple[tuple[str, int], ...]:
    """Say which noise one decision of one lane takes: (distribution, width) in the order of the heads."""
    fields = {field.name: field for field in spec.actions}
    blocks: list[tuple[str, int]] = []
    for head in network.heads:
        field = fields[head.action]
        match head.kind:
            case "categorical":
                blocks.append(("gumbel", sum(field.sizes)))
            case "epsilon":
                blocks += [("gumbel", sum(field.sizes)), ("uniform", 1)]
            case "bernoulli":
                blocks.append(("logistic", math.prod(field.shape)))
            case "gaussian":
                blocks.append(("normal", math.prod(field.shape)))
    return tuple(blocks)
