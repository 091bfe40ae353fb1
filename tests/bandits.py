"""Tiny tasks as batches: a kind of action and a policy in, what acting in them gave out."""

import numpy as np

from farfield.serving import policies
from farfield.types import Field, Kind, Spec, Version

T, B = 16, 16
LENGTH = 3  # steps of an episode of the memory task
BOX = Field("obs", Kind.BOX, "float32", (3,))
SPECS = {
    "discrete": Spec((BOX,), (Field("action", Kind.DISCRETE, "int64", (), (3,)),)),
    "multi_discrete": Spec((BOX,), (Field("action", Kind.MULTI_DISCRETE, "int64", (2,), (3, 2)),)),
    "multi_binary": Spec((BOX,), (Field("action", Kind.MULTI_BINARY, "int8", (3,)),)),
    "continuous": Spec((BOX,), (Field("action", Kind.BOX, "float32", (2,)),)),
    "masked": Spec(
        (BOX, Field("mask", Kind.MULTI_BINARY, "bool", (3,))),
        (Field("action", Kind.DISCRETE, "int64", (), (3,), mask="mask"),),
    ),
    "memory": Spec((BOX,), (Field("action", Kind.DISCRETE, "int64", (), (2,)),)),
}


def policy(algorithm, spec):
    """Make what acts with the weights that the algorithm has now."""
    made = policies.make(spec, algorithm.network)
    made.load(Version("test", 0, 0, None, 0, spec, algorithm.network, {}), algorithm.weights())
    return made


def blank(spec, steps=T, lanes=B):
    """Give a batch in which every step is an episode of its own."""
    batch = {f.name: np.zeros((steps + 1, lanes, *f.shape), f.dtype) for f in spec.observations}
    batch |= {f.name: np.zeros((steps, lanes, *f.shape), f.dtype) for f in spec.actions}
    batch |= {name: np.zeros((steps, lanes), np.float32) for name in ("reward", "log_prob")}
    return batch | {
        "terminated": np.ones((steps, lanes), bool),
        "truncated": np.zeros((steps, lanes), bool),
        "valid": np.ones((steps, lanes), bool),
        "first": np.ones((steps, lanes), bool),
    }


def noise(rng, kind, count):
    """Draw noise for the only head of a task."""
    match kind:
        case "multi_binary":
            return rng.logistic(size=(count, 3)).astype(np.float32)
        case "continuous":
            return rng.normal(size=(count, 2)).astype(np.float32)
        case _:
            width = {"multi_discrete": 5, "memory": 2}.get(kind, 3)
            return rng.gumbel(size=(count, width)).astype(np.float32)


def score(kind, obs, action):
    """Say which part of an answer is right, between 0 and 1 (for numbers: less for far ones)."""
    match kind:
        case "discrete" | "masked":
            return (action == obs.argmax(-1)).astype(np.float32)
        case "multi_discrete":
            right = np.stack([obs.argmax(-1), obs[..., 0] > 0], -1)
            return (action == right).mean(-1).astype(np.float32)
        case "multi_binary":
            return (action == (obs > 0)).mean(-1).astype(np.float32)
        case _:
            return (1 - ((action - 0.5 * obs[..., :2]) ** 2).mean(-1)).astype(np.float32)


def bandit(algorithm, kind, rng):
    """Act in T x B contexts at once."""
    spec, acting = SPECS[kind], policy(algorithm, SPECS[kind])
    batch = blank(spec)
    batch["obs"] = rng.uniform(-1, 1, batch["obs"].shape).astype(np.float32)
    if kind == "masked":  # what is forbidden looks best
        best = batch["obs"].argmax(-1)
        batch["mask"] = np.arange(3) != ((best + 1) % 3)[..., None]
        batch["obs"][~batch["mask"]] += 3
    obs = {f.name: batch[f.name][:-1].reshape(T * B, *f.shape) for f in spec.observations}
    choice = acting.act(obs, noise=noise(rng, kind, T * B), memory={})
    batch["action"] = choice.action["action"].reshape(batch["action"].shape)
    batch["log_prob"] = acting.log_prob(choice.logits, choice.action).reshape(T, B).astype(np.float32)
    seen = batch["obs"][:-1]
    if kind == "masked":
        assert np.take_along_axis(batch["mask"][:-1], batch["action"][..., None], -1).all()
        seen = np.where(batch["mask"][:-1], seen, -9)
    batch["reward"] = score(kind, seen, batch["action"])
    return batch


def memory_task(algorithm, rng):
    """Act in episodes that show a sign at first and pay for repeating it at last; a row that is not valid ends each."""
    spec, acting = SPECS["memory"], policy(algorithm, SPECS["memory"])
    batch = blank(spec)
    for name in ("terminated", "first", "valid"):
        batch[name][:] = False
    state = acting.memory(B)
    batch |= {f"memory/{name}": value.copy() for name, value in state.items()}
    sign = np.zeros(B)
    for t in range(T):
        step = t % (LENGTH + 1)
        if step == 0:
            sign, state = rng.choice([-1.0, 1.0], B), acting.memory(B)
            batch["first"][t] = t == 0  # later pieces begin after a gap, which says it too
        batch["obs"][t, :, 0] = sign * (step == 0)
        batch["obs"][t, :, 1] = step == LENGTH - 1
        choice = acting.act({"obs": batch["obs"][t]}, noise=noise(rng, "memory", B), memory=state)
        state = choice.memory
        batch["valid"][t] = step < LENGTH
        batch["terminated"][t] = step == LENGTH - 1
        batch["action"][t] = choice.action["action"]
        batch["log_prob"][t] = acting.log_prob(choice.logits, choice.action)
        batch["reward"][t] = (choice.action["action"] == (sign > 0)) * (step == LENGTH - 1)
    return batch


def experience(algorithm, kind, rng):
    """Act once in all slots of a batch."""
    return memory_task(algorithm, rng) if kind == "memory" else bandit(algorithm, kind, rng)


def worth(batch):
    """Say what an episode paid on average."""
    return float(batch["reward"].sum() / batch["terminated"].sum())
