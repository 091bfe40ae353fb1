"""Runs laid down on a disk, and commands run in this process, for tests of the command line."""

import json
from pathlib import Path

import pytest

from farfield import cli, wiring
from farfield import config as configs
from farfield.learning import networks
from farfield.telemetry import metrics


def make_run(home: Path, name: str, *, seed: int = 1, rows: int = 30, env: str = "CartPole-v1") -> Path:
    """Lay down a run as training leaves it: config, two versions, metrics and a summary."""
    plain = {"run": name, "env": env, "seed": seed, "algorithm": {"kind": "ppo"}, "registry": {"interval": 0.0}}
    config = configs.decode(plain)
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    wiring.write_config(folder, config)
    lanes = wiring.lanes_of(config, 1, seed=seed, replayable=False)
    network = networks.build(config.network, lanes.spec, style="policy")
    lanes.close()
    registry = wiring.registry_of(config, folder)
    attempt = registry.claim({"pid": 1})
    for number in (0, rows):
        weights = networks.initialise(network, seed=seed + number)
        facts = {"run": name, "number": number, "attempt": attempt, "parent": None, "steps": number * 1024}
        version = registry.describe(weights, spec=lanes.spec, network=network, **facts)
        registry.publish(version, weights)
    log = metrics.MetricsLog(folder)
    for update in range(1, rows + 1):
        log.append(
            {"update": update, "attempt": 1, "version": update, "steps": update * 1024, "seconds": update / 10,
             "returns": [], "return_mean": update * 1.5 + seed}
        )  # fmt: skip
    log.close()
    summary = {"run": name, "updates": rows, "stopped_by": "until", "version": rows}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def run(capsys, *words):
    """Run a command; give its exit code and what it wrote."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def told(capsys, *words):
    """Run a command with --json; give its lines decoded."""
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]
