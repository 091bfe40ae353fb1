"""An algorithm in PyTorch through the same Protocol: advantage actor-critic for one discrete action."""

from tempfile import mkdtemp

import torch
from msgspec import Struct

import farfield
from farfield.errors import ConfigError
from farfield.learning import networks

FEED = "fresh"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    learning_rate: float = 3e-2
    gamma: float = 0.97


class ActorCritic:
    def __init__(self, config, network, seed):
        self.network, self._config = network, config
        first = networks.initialise(network, seed=seed)
        self._tensors = {name: torch.tensor(value, requires_grad=True) for name, value in first.items()}

    def _run(self, branch, end, x):  # an MLP of two layers, by the names of its tensors
        for name in (f"{branch}/0", f"{branch}/1", end):
            x = x @ self._tensors[f"{name}/kernel"] + self._tensors[f"{name}/bias"]
            x = x if name == end else torch.tanh(x)
        return x

    def learn(self, batch):
        row = {name: torch.tensor(column) for name, column in batch.items()}
        value, targets = self._run("value", "value/out", row["obs"]).squeeze(-1), []
        target = value[-1].detach()
        for t in reversed(range(len(row["reward"]))):  # an end, a reset or a limit cuts what comes after
            after = torch.where(row["valid"][t] & ~row["truncated"][t], target, value[t + 1].detach())
            new = row["reward"][t] + self._config.gamma * ~row["terminated"][t] * after
            target = torch.where(row["valid"][t], new, value[t].detach())
            targets.insert(0, target)
        surprise = (torch.stack(targets) - value[:-1])[row["valid"]]
        logits = self._run("policy", self.network.heads[0].inputs[0], row["obs"][:-1])
        score = torch.distributions.Categorical(logits=logits).log_prob(row["action"])[row["valid"]]
        loss = surprise.square().mean() - (score * surprise.detach()).mean()
        tensors = [*self._tensors.values()]
        for tensor, slope in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
            tensor.data -= self._config.learning_rate * slope / (slope.norm() + 1e-2)
        return {"loss": loss.item()}

    def weights(self):
        return {name: tensor.detach().numpy().copy() for name, tensor in self._tensors.items()}

    state = weights  # plain gradient descent has nothing else to remember

    def restore(self, state):
        for name, tensor in self._tensors.items():
            tensor.data = torch.tensor(state[name])

    def tune(self, changes):
        raise ConfigError(f"{', '.join(changes)}: fixed in this algorithm; begin another run")


def make(config, *, spec, network, steps, lanes, seed, devices=1):
    return ActorCritic(config, networks.build(network, spec, style="policy"), seed)


if __name__ == "__main__":
    settings = {"algorithm": {"kind": "torch_algorithm"}, "lanes": {"count": 16, "steps": 32}, "actors": 0}
    run = farfield.train("CartPole-v1", home=mkdtemp(), steps=200_000, until=100.0, **settings)
    print(run.summary["return_mean"], run.summary["stopped_by"])
