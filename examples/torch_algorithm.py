"""An algorithm in PyTorch through the same Protocol: advantage actor-critic for one discrete action."""

from tempfile import mkdtemp
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta, Struct

import farfield
from farfield.learning import networks

FEED = "fresh"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    learning_rate: Annotated[float, Meta(description="step size of Adam", extra_json_schema={"change": "fixed"})] = 2e-3
    gamma: Annotated[float, Meta(description="discount", extra_json_schema={"change": "fixed"})] = 0.97


def make(config, *, spec, network, steps, lanes, seed, devices=1):
    return ActorCritic(config, networks.build(network, spec, style="policy"), seed)


class ActorCritic:
    def __init__(self, config, network, seed):
        self.network, self._gamma = network, config.gamma
        first = networks.initialise(network, seed=seed)
        self._tensors = {name: torch.tensor(value, requires_grad=True) for name, value in first.items()}
        self._adam = torch.optim.Adam(self._tensors.values(), config.learning_rate)

    def _run(self, branch, x):  # the graph of an MLP, by the names of its tensors
        layers = sorted({name.split("/")[1] for name in self._tensors if name.startswith(f"{branch}/")} - {"out"})
        for layer in layers:
            x = torch.tanh(x @ self._tensors[f"{branch}/{layer}/kernel"] + self._tensors[f"{branch}/{layer}/bias"])
        return x

    def learn(self, batch):
        obs, action = torch.tensor(batch["obs"]), torch.tensor(batch["action"])
        reward, valid = torch.tensor(batch["reward"]), torch.tensor(batch["valid"])
        alive, goes_on = ~torch.tensor(batch["terminated"]), valid & ~torch.tensor(batch["truncated"])
        value = self._head("value", obs).squeeze(-1)
        target, targets = value[-1].detach(), []
        for t in reversed(range(len(reward))):
            after = torch.where(goes_on[t], target, value[t + 1].detach())
            target = torch.where(valid[t], reward[t] + self._gamma * alive[t] * after, value[t].detach())
            targets.insert(0, target)
        surprise = (torch.stack(targets) - value[:-1])[valid]
        chosen = torch.distributions.Categorical(logits=self._head("policy", obs[:-1]))
        gain = (chosen.log_prob(action)[valid] * surprise.detach()).mean() + 0.01 * chosen.entropy()[valid].mean()
        loss = surprise.square().mean() - gain
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        return {"loss": loss.item()}
