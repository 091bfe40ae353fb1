"""A store tunes its read-ahead (beside `farfield serve`); how long reads took is known decisions later, elsewhere."""

import queue
import random
import statistics
import sys
import threading
import time

import farfield
from farfield.types import Field, Kind, Spec

AHEAD = (0, 4, 16, 64, 256)  # pages that are read ahead; 16 is what stores ship with
DEFAULT, WAIT, DECISIONS = 2, (3, 12), 24_000
SPEC = Spec((Field("obs", Kind.BOX, "float32", (3,)),), (Field("action", Kind.DISCRETE, "int64", (), (len(AHEAD),)),))
CONFIG = {
    "algorithm": {"kind": "ppo", "epochs": 6, "minibatch": 128, "learning_rate": 3e-3, "gamma": 0.8, "entropy": 0.003},
    "lanes": {"count": 8, "steps": 64},
    "credit_window": 0.5,  # seconds that rewards may take: the learner waits so long before it learns from a step
}


class Store:
    """Workloads take turns: some read files from end to end, some here and there; what is read ahead may be wasted."""

    def __init__(self, seed):
        self.random, self.sequential, self.load, self.backlog = random.Random(seed), 0.9, 0.5, 0.0

    def look(self):
        if self.random.random() < 0.02:  # another workload
            self.sequential, self.load = self.random.choice([0.02, 0.5, 0.95]), self.random.uniform(0.2, 0.8)
        return [self.sequential + self.random.gauss(0, 0.05), self.load, self.backlog / 5]

    def read(self, ahead):
        """Serve for an interval; gives the mean latency in ms."""
        misses = 1 - self.sequential + self.sequential / (1 + ahead)
        wasted = (1 - self.sequential) * ahead / 20 + ahead / 1024
        self.backlog = min(5.0, max(0.0, self.backlog + self.load * (misses + wasted) - 0.6))
        return 0.2 + 4 * misses + self.backlog + self.random.expovariate(10)


def account(app, done, latencies):
    """Credit decisions with what came of them: a thread that knows their names and nothing else."""
    for decision, latency in iter(done.get, None):
        latencies.append(latency)
        app.credit(decision, -latency)


def main(address="localhost:50051"):
    store, done, under_way, latencies = Store(1), queue.Queue(), [], []
    with farfield.connect(address, run="store", spec=SPEC, config=CONFIG) as app:
        accountant = threading.Thread(target=account, args=(app, done, latencies))
        accountant.start()
        app.wait(60)  # for a first policy
        episode = app.episode()  # one that never ends
        for now in range(DECISIONS):
            latency = store.read(AHEAD[episode.act(store.look())])
            under_way.append((now + store.random.randint(*WAIT), episode.decision, latency))
            for entry in [entry for entry in under_way if entry[0] <= now]:
                done.put(under_way.pop(under_way.index(entry))[1:])
            time.sleep(0.0005)
        done.put(None)
        accountant.join()
    return latencies


def usual():
    """Give the latencies of the same workloads under the setting that stores ship with."""
    store = Store(1)
    return [(store.look(), store.read(AHEAD[DEFAULT]))[1] for _ in range(DECISIONS)]


if __name__ == "__main__":
    found, mean, tenth = main(*sys.argv[1:]), statistics.mean, DECISIONS // 10
    print(f"default {mean(usual()):.2f} ms; first {mean(found[:tenth]):.2f} ms, at last {mean(found[-tenth:]):.2f} ms")
