"""Applications written for RL4Sys run here: their files, their calling orders, and what becomes of their experience."""

import gc
import json
import random
import sys
import threading
import time
import warnings
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from farfield import config as configs
from farfield.codec import decode_fragment, kind_of
from farfield.compat.rl4sys import RL4SysAction, RL4SysAgent, RL4SysTrajectory, file, mapping
from farfield.errors import ConfigError, MissingError, SpecError
from farfield.transports import disk
from gateways import PATIENCE, eventually, start
from gateways import gateway as gateway_in

FILES = Path(__file__).parent / "rl4sys"
TINY = {"input_size": 3, "act_dim": 4, "traj_per_epoch": 64, "train_pi_iters": 2, "seed": 5}


@pytest.mark.parametrize("name", ["lander.json", "jobs.yaml", "replay.json"])
def test_their_files_become_configs_that_a_run_can_have(name):
    settings, _ = file.read(FILES / name)
    agreed = mapping.agree(settings)
    config = configs.decode({"run": settings.run} | agreed.config)
    module = configs.plugin("learning.algorithms", config.algorithm["kind"])
    configs.section_of(config.algorithm, module, "algorithm")
    assert agreed.spec.observations[0].shape == (settings.algorithm_parameters["input_size"],)


def test_a_name_becomes_one_that_a_run_may_have():
    settings, _ = file.read(FILES / "lander.json")
    assert settings.run == "luna-landing"


def test_their_ppo_means_what_it_meant():
    config = mapping.agree(file.read(FILES / "lander.json")[0]).config
    assert config["lanes"] == {"steps": 64, "count": 4}  # traj_per_epoch counts steps
    assert config["algorithm"]["minibatch"] == 256  # batch_size = 512 is more than there is
    assert config["algorithm"]["epochs"] == 80
    assert config["algorithm"]["target_kl"] == 0.0  # null: never
    jobs = mapping.agree(file.read(FILES / "jobs.yaml")[0]).config["algorithm"]
    assert jobs["target_kl"] == pytest.approx(0.015)  # theirs stops at one and a half times
    assert jobs["max_grad_norm"] == mapping.NEVER_CUT
    assert jobs["learning_rate"] == 3e-4  # YAML takes 3e-4 for a word


def test_their_dqn_explores_for_as_long_as_it_was_meant_to():
    config = mapping.agree(file.read(FILES / "replay.json")[0]).config
    assert config["algorithm"]["epsilon_steps"] == 1980  # 0.99 in steps of 5e-4; as a factor it was over at once
    assert config["feed"] == {"capacity": 20_000, "warmup": 500, "ratio": 8.0}
    assert config["algorithm"]["tau"] == 0.005
    assert "target_every" not in config["algorithm"]


def test_every_key_without_effect_is_named_with_its_reason():
    settings, ignored = file.read(FILES / "replay.json")
    named = ignored | mapping.agree(settings).ignored
    assert set(named) == {"request_timeout_seconds", "enable_compression", "target_network_frequency"}
    settings, ignored = file.read(FILES / "lander.json")
    assert set(ignored | mapping.agree(settings).ignored) == {"act_limit", "vf_lr"}


def test_our_own_words_in_a_file_go_over_theirs(tmp_path):
    path = write(tmp_path, farfield={"algorithm": {"clip": 0.1}, "network": {"hidden": [8]}})
    config = mapping.agree(file.read(path)[0]).config
    assert config["algorithm"]["clip"] == 0.1
    assert config["algorithm"]["epochs"] == 2
    assert config["network"] == {"hidden": [8]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"client_id": ""}, "client_id is missing"),
        ({"algorithm_name": "TD3"}, "PPO, DQN"),
        ({"algorithm_parameters": {"act_dim": 2}}, "input_size"),
        ({"algorithm_parameters": TINY | {"gamma": "high"}}, "gamma"),
        ({"send_frequency": 0}, "send_frequency"),
        ({"max_traj_length": "long"}, "max_traj_length"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, changes, told):
    with pytest.raises(ConfigError, match=told):
        mapping.agree(file.read(write(tmp_path, **changes))[0])


def test_a_file_that_is_none_says_so(tmp_path):
    with pytest.raises(ConfigError, match="no-such"):
        file.read(tmp_path / "no-such.json")
    (tmp_path / "half.json").write_text('{"client_id": ')
    with pytest.raises(ConfigError, match="not JSON"):
        file.read(tmp_path / "half.json")


def test_yaml_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingError, match=r"pip install 'farfield\[rl4sys\]'"):
        file.read(FILES / "jobs.yaml")


def test_modules_are_where_applications_look_for_them():
    from farfield.compat.rl4sys.client.agent import RL4SysAgent as Agent
    from farfield.compat.rl4sys.common.action import RL4SysAction as Action
    from farfield.compat.rl4sys.common.trajectory import RL4SysTrajectory as Episode
    from farfield.compat.rl4sys.utils.logging_config import setup_rl4sys_logging
    from farfield.compat.rl4sys.utils.util import StructuredLogger

    assert (Agent, Action, Episode) == (RL4SysAgent, RL4SysAction, RL4SysTrajectory)
    setup_rl4sys_logging(debug=False)
    StructuredLogger("application", debug=True).info("began", iteration=1)


def test_actions_share_nothing_and_know_what_was_set():
    one, two = RL4SysAction(), RL4SysAction()
    one.data["logp_a"] = 1
    assert two.data == {}
    assert not one.is_reward_set()
    one.update_reward(np.float32(2))
    assert (one.rew, one.reward, one.is_reward_set()) == (2.0, 2.0, True)
    with pytest.raises(SpecError, match="finite"):
        one.rew = float("nan")


# From here on with a real gateway.


def write(folder, **changes):
    plain = {
        "client_id": "tiny", "algorithm_name": "PPO", "algorithm_parameters": TINY, "send_frequency": 2,
        "connection_timeout_seconds": 60, "farfield": {"checkpoint": {"interval": 3600.0}},  # so that the log stays
    } | changes  # fmt: skip
    path = folder / f"{plain['client_id'] or 'none'}.json"
    path.write_text(json.dumps(plain))
    return path


ALONE = ("--http", "")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with gateway_in(home, *ALONE, doors=1) as running:
        running.home = home
        yield running


@pytest.fixture
def agent_of(gateway, tmp_path, request):
    """Make agents with files of their own; they are closed at the end."""
    made = []

    def make(**changes):
        own = {"spool": str(tmp_path / "spool"), "client": request.node.name}
        options = {"options": own | changes.pop("options", {})}
        made.append(RL4SysAgent(str(write(tmp_path, train_server_address=gateway.grpc, **options | changes))))
        made[-1].label = options["options"]["client"]
        return made[-1]

    yield make
    for agent in made:
        agent.close()


def payloads(home, run):
    """Give what is in the log of a run."""
    log = disk.make(disk.Config(folder=str(home / "runs" / run / "log")))
    records, _ = log.read("experiences", after={}, limit=100_000, timeout=0.0)
    log.close()
    return [bytes(record.payload) for record in records]


def fragments(home, agent):
    """Give what arrived of an agent."""
    found = payloads(home, agent.client_id)
    decoded = [decode_fragment(payload) for payload in found if kind_of(payload) == "Fragment"]
    return [fragment for fragment in decoded if fragment.actor == agent.label]


def rows(home, agent):
    """Give what arrived, end to end: source, reward, terminated, truncated, valid, first number seen."""
    return [
        (f.source, *(f.columns[name][t, 0].item() for name in ("reward", "terminated", "truncated", "valid")),
         round(f.columns["obs"][t, 0, 0].item(), 3))
        for f in fragments(home, agent) for t in range(len(f.columns["reward"]))
    ]  # fmt: skip


class Tensor:
    """What a tensor of another library looks like from outside: it gives no array before it is detached."""

    def __init__(self, values, attached=True):
        self._values, self._attached = values, attached

    def detach(self):
        return Tensor(self._values, attached=False)

    def cpu(self):
        return self

    def __array__(self, dtype=None, copy=None):
        if self._attached:
            raise RuntimeError("call detach() first")
        return np.array(self._values, dtype)


def play(agent, *, lengths=(3, 2), before=False, added=True, obs=lambda t: [t, 0.5, 1.0], mask=None):
    """The lunar loop: request, add, step, reward, at last the end; with the orders that programs may choose."""
    traj = None
    for length in lengths:
        for t in range(length):
            traj, action = agent.request_for_action(traj, obs(t), mask)
            if before:
                action.update_reward(t)
            if added or t < length - 1:
                agent.add_to_trajectory(traj, action)
            if not before:
                agent.update_action_reward(action, t)
        agent.mark_end_of_trajectory(traj, action)
    return traj


EXPECTED = [
    ("", 0.0, False, False, True, 0.0), ("", 1.0, False, False, True, 1.0), ("", 2.0, True, False, True, 2.0),
    ("", 0.0, False, False, True, 0.0), ("", 1.0, True, False, True, 1.0),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_every_calling_order_gives_the_same_experience(gateway, agent_of, before, added):
    agent = agent_of()
    play(agent, before=before, added=added)
    assert not agent.close()
    assert rows(gateway.home, agent) == EXPECTED
    assert all(f.columns["log_prob"].max() < 0 for f in fragments(gateway.home, agent))


@pytest.mark.slow
def test_the_job_loop_pays_at_the_end_and_may_stop_in_the_middle(gateway, agent_of):
    agent = agent_of()
    traj = None
    for most in (
        4,
        3,
    ):  # the second one is cut off by a limit, which the program calls an end
        obs, decided, done = np.array([0.0, 0.5, 1.0]), 0, False
        while not done and decided < most:
            traj, action = agent.request_for_action(traj, obs, mask=np.array([[1.0, 0.0, 1.0, 0.0]]))
            agent.add_to_trajectory(traj, action)
            assert int(action.act[0]) in (0, 2)
            decided += 1
            done = decided == 4
            obs = None if done else np.add(obs, [1, 0, 0])
            action.update_reward(-7.5 if done else 0)
            if decided >= most or done:
                agent.mark_end_of_trajectory(traj, action)
    assert not agent.close()
    seen = rows(gateway.home, agent)
    assert [row[1] for row in seen] == [0, 0, 0, -7.5, 0, 0, 0]
    assert [row[2] for row in seen] == [False, False, False, True, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("obs", [lambda t: np.array([[t, 0.5, 1.0]], np.float64), lambda t: Tensor([[t, 0.5, 1.0]])])
def test_observations_may_be_arrays_lists_or_tensors(gateway, agent_of, obs):
    agent = agent_of()
    play(agent, obs=obs, mask=Tensor([[1.0, 1.0, 0.0, 0.0]]))
    assert not agent.close()
    assert rows(gateway.home, agent) == EXPECTED


@pytest.mark.slow
def test_actions_keep_their_types(agent_of):
    ppo = agent_of()
    _, action = ppo.request_for_action(None, [0, 0, 0])
    assert isinstance(action.act, np.ndarray)
    assert action.act.shape == (1,)
    dqn = agent_of(client_id="tiny-dqn", algorithm_name="DQN", algorithm_parameters={"input_size": 3, "act_dim": 4})
    _, action = dqn.request_for_action(None, [0, 0, 0])
    assert isinstance(action.act, int)


@pytest.mark.slow
def test_numbers_are_decided_within_their_bounds(gateway, agent_of):
    agent = agent_of(client_id="tiny-numbers", algorithm_name="PPO_Continuous", act_limit=0.1)
    traj = None
    for t in range(20):
        traj, action = agent.request_for_action(traj, [t, 0, 0])
        assert action.act.shape == (1, 4)
        assert np.abs(action.act).max() <= 0.1
        agent.add_to_trajectory(traj, action)
        action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action)
    assert not agent.close()
    assert {row[0] for row in rows(gateway.home, agent)} == {""}  # what was clipped is the policy's own


@pytest.mark.slow
def test_what_is_handed_over_wrongly_is_named(agent_of):
    agent = agent_of()
    with pytest.raises(ValueError, match="obs is None"):
        agent.request_for_action(None)
    with pytest.raises(SpecError, match="obs: expected 3 numbers"):
        agent.request_for_action(None, [0, 0])
    with pytest.raises(SpecError, match="mask: expected 4 numbers"):
        agent.request_for_action(None, [0, 0, 0], [1, 0])
    with pytest.raises(SpecError, match="finite"):
        agent.request_for_action(None, [0, 0, float("nan")])


@pytest.mark.slow
def test_a_forbidden_action_is_never_chosen(gateway, agent_of):
    agent = agent_of()
    traj = None
    for _ in range(200):
        mask = np.zeros(4)
        mask[random.sample(range(4), 2)] = 1
        traj, action = agent.request_for_action(traj, np.zeros(3), mask)
        agent.add_to_trajectory(traj, action)
        action.update_reward(0)
        assert mask[action.act[0]]
    agent.mark_end_of_trajectory(traj, action)
    assert not agent.close()
    for fragment in fragments(gateway.home, agent):
        allowed = fragment.columns["mask"][:-1, 0]
        assert np.take_along_axis(allowed, fragment.columns["action"], 1).all()


@pytest.mark.slow
def test_what_was_not_added_did_not_happen(gateway, agent_of):
    agent = agent_of()
    traj, unused = agent.request_for_action(None, [9, 9, 9])
    for t in range(3):
        traj, action = agent.request_for_action(traj, [t, 0, 0])
        if t == 1:
            agent.request_for_action(traj, [8, 8, 8])
        agent.add_to_trajectory(traj, action)
        agent.add_to_trajectory(traj, action)  # a second time changes nothing
        action.rew = t
    unused.update_reward(100)
    agent.mark_end_of_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action)
    assert not agent.close()
    assert rows(gateway.home, agent) == EXPECTED[:3]


@pytest.mark.slow
def test_an_action_may_be_added_to_a_later_episode(gateway, agent_of):
    agent = agent_of()
    first, early = agent.request_for_action(None, [7, 0, 0])
    first, action = agent.request_for_action(first, [1, 0, 0])
    action.reward = 1
    agent.mark_end_of_trajectory(first, action)
    second, action = agent.request_for_action(first, [2, 0, 0])
    assert second is not first
    early.reward = 7
    agent.add_to_trajectory(second, early)
    action.reward = 2
    agent.mark_end_of_trajectory(second, action)
    assert not agent.close()
    assert [(row[5], row[1]) for row in rows(gateway.home, agent)] == [(1, 1), (7, 7), (2, 2)]


@pytest.mark.slow
def test_several_episodes_are_open_at_once(gateway, agent_of):
    agent = agent_of()
    one = two = None
    for t in range(4):
        one, a = agent.request_for_action(one, [t, 0, 0])
        two, b = agent.request_for_action(two, [10 + t, 0, 0])
        for traj, action in ((one, a), (two, b)):
            agent.add_to_trajectory(traj, action)
            action.update_reward(1)
    agent.mark_end_of_trajectory(two, b)
    agent.mark_end_of_trajectory(one, a)
    assert not agent.close()
    assert [row[5] for row in rows(gateway.home, agent)] == [10, 11, 12, 13, 0, 1, 2, 3]


@pytest.mark.slow
def test_what_the_host_decided_is_marked(gateway, agent_of):
    agent = agent_of(client_id="tiny-dqn", algorithm_name="DQN", algorithm_parameters={"input_size": 3, "act_dim": 4})
    traj, action = agent.request_for_action(None, [0, 0, 0])
    agent.add_to_trajectory(traj, action)
    action.rew = 0
    traj, changed = agent.request_for_action(traj, [1, 0, 0])
    changed.act = (changed.act + 1) % 4
    changed.rew = 1
    agent.add_to_trajectory(traj, changed)
    own = RL4SysAction(obs=[2, 0, 0], action=3, reward=2)
    agent.mark_end_of_trajectory(traj, own)
    assert not agent.close()
    assert [(row[0], row[1]) for row in rows(gateway.home, agent)] == [("", 0), ("host", 1), ("host", 2)]


@pytest.mark.slow
def test_rewards_may_come_until_the_end_and_after_it(gateway, agent_of):
    agent = agent_of(send_frequency=3)
    held = []
    traj = None
    for t in range(3):
        traj, action = agent.request_for_action(traj, [t, 0, 0])
        agent.add_to_trajectory(traj, action)
        held.append(action)
    agent.mark_end_of_trajectory(traj, action)
    assert agent.counts.written == 0
    for reward in (2, 1, 0):
        held[reward].update_reward(reward)
    assert agent.counts.written == 3  # nothing else had to happen
    assert not agent.close()
    assert rows(gateway.home, agent) == EXPECTED[:3]


@pytest.mark.slow
def test_a_reward_after_the_fact_follows_as_a_credit(gateway, agent_of):
    agent = agent_of(client_id="late", credit_window=60)
    traj, action = agent.request_for_action(None, [0, 0, 0])
    action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action)
    eventually(lambda: fragments(gateway.home, agent), "the fragment")
    action.update_reward(5)
    assert agent.counts.late == 1
    assert not agent.close()
    assert [kind_of(payload) for payload in payloads(gateway.home, "late")] == ["Fragment", "Credit"]


@pytest.mark.slow
def test_rewards_that_never_come_count_as_nothing_and_are_counted(gateway, agent_of):
    agent = agent_of(send_frequency=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        traj = None
        for episode in range(3):
            traj, action = agent.request_for_action(traj, [episode, 0, 0])
            agent.mark_end_of_trajectory(traj, action)
        assert agent.counts.written == 2  # the last one may still get its reward
        assert not agent.close()
    assert agent.counts.unrewarded == 3
    assert len([one for one in told if "no reward" in str(one.message)]) == 1
    assert [row[1] for row in rows(gateway.home, agent)] == [0, 0, 0]


@pytest.mark.slow
def test_long_episodes_are_truncated_and_go_on(gateway, agent_of):
    agent = agent_of(max_traj_length=2)
    traj = play(agent, lengths=(5,))
    assert not agent.close()
    assert traj.is_completed()
    seen = rows(gateway.home, agent)
    assert [(row[5], row[3], row[4]) for row in seen] == [
        (0, False, True), (1, True, True), (2, False, False),  # cut off: what came next is shown, and is no step
        (2, False, True), (3, True, True), (4, False, False),
        (4, False, True),
    ]  # fmt: skip
    assert seen[-1][2]  # terminated


@pytest.mark.slow
def test_closing_delivers_everything(gateway, agent_of):
    agent = agent_of(send_frequency=10)
    play(agent, lengths=[2] * 29)
    traj = None
    for t in range(4):  # and an episode that nobody ended: its last outcome is not known
        traj, action = agent.request_for_action(traj, [100 + t, 0, 0])
        agent.add_to_trajectory(traj, action)
        action.update_reward(1)
    assert not agent.close()
    seen = rows(gateway.home, agent)
    assert sum(row[4] for row in seen) == 29 * 2 + 3
    assert seen[-1][3:] == (False, False, 103)
    assert seen[-2][3]
    assert agent.counts.unfinished == 1
    assert agent.close() is None


@pytest.mark.slow
def test_steps_state_the_version_that_decided(gateway, agent_of):
    agent = agent_of(options={"flush": 0.05})
    eventually(lambda: play(agent, lengths=(20,)) and agent.local_version >= 3, "version 3")
    traj, action = agent.request_for_action(None, [0, 0, 0])
    assert action.version >= 3
    assert traj.version == action.version
    assert not agent.close()
    versions = np.concatenate(
        [
            fragment.columns.get("version", np.full(len(fragment.columns["reward"]), fragment.version))
            for fragment in fragments(gateway.home, agent)
        ]
    )
    assert (np.diff(versions) >= 0).all()
    assert versions.max() >= 2


@pytest.mark.slow
def test_equal_ids_share_a_run_and_other_shapes_are_refused(gateway, agent_of):
    one, two = agent_of(options={"client": "one"}), agent_of(options={"client": "two"})
    for agent in (one, two):
        play(agent)
        assert not agent.close()
        assert rows(gateway.home, agent) == EXPECTED
    with pytest.raises(SpecError, match=r"obs.*expected \[3\], came \[4\]"):
        agent_of(algorithm_parameters=TINY | {"input_size": 4})


@pytest.mark.slow
def test_the_gateway_may_decide_instead(gateway, agent_of):
    play(agent_of(options={"client": "at home"}))  # returns once there is a version
    agent = agent_of(remote=True)
    play(agent, mask=[1, 1, 0, 1])
    assert not agent.close()
    assert rows(gateway.home, agent) == EXPECTED
    assert agent.app.version is None  # nothing was followed here
    assert all((f.columns["action"] != 2).all() and f.columns["log_prob"].all() for f in fragments(gateway.home, agent))


@pytest.mark.slow
def test_a_policy_has_a_run_of_its_own(gateway, agent_of):
    agent = agent_of(policy="scout")
    play(agent)
    assert not agent.close()
    found = [decode_fragment(payload) for payload in payloads(gateway.home, "tiny.scout")]
    assert {fragment.policy for fragment in found} == {"scout"}


@pytest.mark.slow
def test_a_token_in_the_file_lets_the_program_in(tmp_path):
    secret = "a secret of twenty-odd letters"
    server = tmp_path / "server.toml"
    server.write_text(
        f'[[tokens]]\nname = "app"\nsha256 = "{sha256(secret.encode()).hexdigest()}"\nscopes = ["ingest", "create"]\n'
    )
    with gateway_in(tmp_path / "home", "--config", str(server), "--grpc", "127.0.0.1:0", *ALONE, doors=1) as running:
        place = {"train_server_address": running.grpc, "options": {"spool": ""}}
        agent = RL4SysAgent(str(write(tmp_path, token=secret, **place)))
        play(agent)
        assert not agent.close()
        with pytest.raises(ConfigError, match="unknown token"):
            RL4SysAgent(str(write(tmp_path, token="another", **place)))


def shown(n, allowed):
    """A task of one step that is paid for repeating what is shown; others are forbidden."""
    answer = random.randrange(n)
    mask = [0.0] * n
    for place in {answer, *random.sample(range(n), allowed - 1)}:
        mask[place] = 1.0
    return answer, np.eye(n, dtype=np.float32)[answer], mask


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_it_learns(gateway, agent_of, name):
    parameters = {
        "PPO": {"traj_per_epoch": 256, "train_pi_iters": 10, "batch_size": 64, "pi_lr": 3e-3, "gamma": 0.5},
        "DQN": {"lr": 3e-3, "epsilon_decay": 1e-3, "epsilon_min": 0.05, "learning_starts": 200, "gamma": 0.5,
                "batch_size": 32, "train_frequency": 4},
    }[name]  # fmt: skip
    agent = agent_of(
        client_id=f"learns-{name}", algorithm_name=name, options={"pace": True},
        algorithm_parameters={"input_size": 5, "act_dim": 5, "seed": 1} | parameters,
    )  # fmt: skip
    earned, traj, deadline = [], None, time.monotonic() + PATIENCE
    while len(earned) < 400 or np.mean(earned[-400:]) < 0.85:
        assert time.monotonic() < deadline, f"{name} earns {np.mean(earned[-400:])}"
        for _ in range(8):
            answer, obs, mask = shown(5, 3)
            traj, action = agent.request_for_action(traj, obs, mask)
            agent.add_to_trajectory(traj, action)
            chosen = int(np.asarray(action.act).reshape(-1)[0])
            assert mask[chosen]
            action.update_reward(float(chosen == answer))
            earned.append(action.rew)
        agent.mark_end_of_trajectory(traj, action)
    assert not agent.close()


@pytest.mark.slow
def test_nothing_is_lost_when_the_gateway_is_killed(tmp_path):
    home = tmp_path / "home"
    running = start(home, *ALONE, doors=1)
    door = ("--grpc", running.grpc)
    path = write(
        tmp_path, client_id="killed", train_server_address=running.grpc,
        options={"spool": str(tmp_path / "spool"), "flush": 0.05},
    )  # fmt: skip
    agent = RL4SysAgent(str(path))
    agent.label = agent.client_id
    try:
        for _ in range(2):
            play(agent, lengths=[20] * 10)
            running.kill()
            play(agent, lengths=[20] * 10)  # goes on, and notices nothing
            running = start(home, *door, *ALONE, doors=1)
        assert not agent.close(60.0)
    finally:
        running.kill()
    names = [(f.stream, f.seq) for f in fragments(home, agent)]
    assert len(names) == len(set(names))
    assert sum(row[4] for row in rows(home, agent)) == agent.counts.written == 40 * 20


@pytest.mark.slow
def test_a_program_may_be_there_before_its_gateway(tmp_path):
    home = tmp_path / "home"
    running = start(home, *ALONE, doors=1)
    running.stop()
    path = write(
        tmp_path, client_id="early", train_server_address=running.grpc, connection_timeout_seconds=0.1,
        options={"spool": str(tmp_path / "spool"), "flush": 0.05},
    )  # fmt: skip
    agent = RL4SysAgent(str(path))
    agent.label = agent.client_id
    traj, action = agent.request_for_action(None, [0, 0, 0], [0, 1, 0, 1])
    assert action.act[0] in (1, 3)
    action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action)
    with gateway_in(home, "--grpc", running.grpc, *ALONE, doors=1):
        eventually(lambda: agent.local_version >= 0, "a version")
        traj, action = agent.request_for_action(None, [1, 0, 0])
        action.update_reward(1)
        agent.mark_end_of_trajectory(traj, action)
        assert not agent.close(60.0)
    assert [row[0] for row in rows(home, agent)] == ["fallback", ""]


@pytest.mark.slow
def test_several_threads_may_use_one_agent(gateway, agent_of):
    agent = agent_of(options={"flush": 0.05})
    threads = [threading.Thread(target=play, args=(agent,), kwargs={"lengths": [5] * 40}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not agent.close()
    assert sum(row[4] for row in rows(gateway.home, agent)) == 3 * 40 * 5
    seen = [row[5] for row in rows(gateway.home, agent) if row[4]]
    assert seen == list(range(5)) * (len(seen) // 5)  # each episode in one piece


@pytest.mark.slow
def test_what_the_program_let_go_of_takes_no_room(agent_of):
    agent = agent_of()
    for _ in range(300):
        traj, action = agent.request_for_action(None, [0, 0, 0])
    agent.add_to_trajectory(traj, action)
    gc.collect()
    assert sum(isinstance(thing, RL4SysAction) for thing in gc.get_objects()) < 200
