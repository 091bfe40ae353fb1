"""Outlet: what followers are sent, when versions are committed, and what the log may forget."""

from pathlib import Path

import numpy as np

from farfield.codec import decode_announcement
from farfield.learning import networks
from farfield.transports import memory
from farfield.types import Announcement, Field, Kind, Spec, Weights, acting
from farfield.weights import registry
from farfield.weights.outlet import FULL, SIZES, Outlet

SPEC = Spec(
    observations=(Field("obs", Kind.BOX, "float32", (3,)),),
    actions=(Field("action", Kind.DISCRETE, "int64", (), (2,)),),
)
STREAM = "ab" * 16
NETWORK = networks.build(networks.Config(hidden=(4,)), SPEC, style="policy")


def outlet_of(folder: Path, interval: float = 0.0) -> tuple[Outlet, memory.MemoryTransport]:
    store = registry.make(registry.Config(interval=interval), folder)
    attempt = store.claim({"pid": 1})
    outlet = Outlet(store, run="r", attempt=attempt, spec=SPEC, network=NETWORK, parent=None)
    transport = memory.make(memory.Config())
    outlet.announce_to(transport, "model_updates")
    return outlet, transport


def announced(transport: memory.MemoryTransport) -> list[Announcement]:
    records, _ = transport.read("model_updates", after={}, limit=10_000, timeout=0.0)
    return [decode_announcement(record.payload) for record in records]


def changed(weights: Weights, *names: str) -> Weights:
    return {name: value + np.float32(name in names) for name, value in weights.items()}


def test_the_critic_never_travels_and_frozen_tensors_travel_once(tmp_path: Path) -> None:
    outlet, transport = outlet_of(tmp_path)
    first = networks.initialise(NETWORK, seed=1)
    outlet.publish(0, first, steps=0, settled={})
    head = NETWORK.heads[0].inputs[0] + "/kernel"
    outlet.publish(1, changed(first, head, "value/0/kernel"), steps=8, settled={STREAM: 1})
    full, partial = announced(transport)
    assert full.full
    assert full.weights.keys() == acting(NETWORK)
    assert not partial.full
    assert partial.weights.keys() == {head}
    assert partial.settled == {STREAM: 1}
    assert not any(name.startswith("value") for name in full.weights)


def test_a_late_follower_finds_a_full_announcement_and_the_log_does_not_grow(tmp_path: Path) -> None:
    outlet, transport = outlet_of(tmp_path, interval=1e9)
    weights = networks.initialise(NETWORK, seed=1)
    head = NETWORK.heads[0].inputs[0] + "/kernel"
    for number in range(5 * FULL):
        weights = changed(weights, head)
        outlet.publish(number, weights, steps=number, settled={})
    kept = announced(transport)
    assert kept[0].full
    assert kept[-1].version.number == 5 * FULL - 1
    assert len(kept) <= 2 * (FULL + 2)


def test_one_tensor_that_stays_does_not_make_the_log_grow(tmp_path: Path) -> None:
    outlet, transport = outlet_of(tmp_path, interval=1e9)
    weights = networks.initialise(NETWORK, seed=1)
    every = sum(weights[name].nbytes for name in acting(NETWORK))
    constant = NETWORK.heads[0].inputs[0] + "/bias"
    for number in range(3 * FULL):
        weights = changed(weights, *(acting(NETWORK) - {constant}))
        outlet.publish(number, weights, steps=number, settled={})
        kept = sum(array.nbytes for one in announced(transport) for array in one.weights.values())
        assert kept <= (2 * SIZES + 3) * every


def test_more_settled_without_a_new_version_is_announced_again(tmp_path: Path) -> None:
    outlet, transport = outlet_of(tmp_path)
    outlet.publish(0, networks.initialise(NETWORK, seed=1), steps=0, settled={})
    outlet.settle({})
    outlet.settle({STREAM: 2})
    assert [one.settled for one in announced(transport)] == [{}, {STREAM: 2}]


def test_versions_are_committed_at_most_once_an_interval_and_when_asked(tmp_path: Path) -> None:
    outlet, _ = outlet_of(tmp_path, interval=1e9)
    weights = networks.initialise(NETWORK, seed=1)
    for number in range(5):
        weights = changed(weights, "policy/0/kernel")
        outlet.publish(number, weights, steps=number, settled={})
    assert outlet.registry.numbers() == [0]
    outlet.commit()
    outlet.commit()
    assert outlet.registry.numbers() == [0, 4]
    head = outlet.registry.head()
    assert head is not None
    assert (head.parent, head.steps) == (3, 4)
