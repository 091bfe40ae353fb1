"""Tasks that must be learned, through the public API: tiny ones by every algorithm, and the well-known ones."""

from pathlib import Path

import pytest

import farfield

QUIET = {"metrics": {"writers": []}, "actors": 0, "seed": 1}


@pytest.mark.slow
def test_ppo_solves_cartpole_with_an_actor_of_its_own(tmp_path: Path) -> None:
    run = farfield.train("CartPole-v1", home=str(tmp_path), **(QUIET | {"actors": 1}))
    assert run.summary["stopped_by"] == "until", run.summary
    assert run.summary["dropped"] == 0
    result = farfield.play(run.name, home=str(tmp_path), episodes=10)
    assert result["return_mean"] > 400


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_every_auto_reset_mode_can_be_learned_from(tmp_path: Path, mode: str) -> None:
    settings = {"actors": 1, "steps": 40_000, "until": 28.6, "lanes": {"count": 8, "steps": 32, "backend": "vector"}}
    algorithm = {"kind": "ppo", "minibatch": 64, "gamma": 0.9}
    run = farfield.train(
        f"test_lanes:Count{mode}-v0", home=str(tmp_path), metrics={"writers": []}, algorithm=algorithm, **settings
    )
    assert run.summary["stopped_by"] == "until", run.summary


@pytest.mark.slow
def test_dqn_solves_cartpole(tmp_path: Path) -> None:
    run = farfield.train("CartPole-v1", home=str(tmp_path), **(QUIET | {"algorithm": {"kind": "dqn"}}))
    assert run.summary["stopped_by"] == "until", run.summary


@pytest.mark.slow
def test_reinforce_learns_cartpole(tmp_path: Path) -> None:
    settings = QUIET | {"algorithm": {"kind": "reinforce"}, "until": 200.0}
    run = farfield.train("CartPole-v1", home=str(tmp_path), **settings)
    assert run.summary["stopped_by"] == "until", run.summary


@pytest.mark.slow
def test_continuous_ppo_swings_the_pendulum_up(tmp_path: Path) -> None:
    run = farfield.train("Pendulum-v1", home=str(tmp_path), **QUIET)
    assert run.summary["stopped_by"] == "until", run.summary


@pytest.mark.slow
def test_a_recurrent_policy_solves_what_one_without_memory_cannot(tmp_path: Path) -> None:
    settings = QUIET | {"steps": 200_000, "until": 0.95, "lanes": {"count": 16, "steps": 32}}
    algorithm = {"kind": "ppo", "minibatch": 128, "epochs": 4, "learning_rate": 3e-3, "gamma": 0.95, "entropy": 0.01}
    settings |= {"algorithm": algorithm}
    gru = farfield.train(
        "farfield/MemoryCorridor-v0", name="gru", home=str(tmp_path), network={"kind": "gru"}, **settings
    )
    assert gru.summary["stopped_by"] == "until", gru.summary
    settings["steps"] = gru.summary["steps"] * 2
    mlp = farfield.train("farfield/MemoryCorridor-v0", name="mlp", home=str(tmp_path), **settings)
    assert mlp.summary["stopped_by"] == "steps", mlp.summary
