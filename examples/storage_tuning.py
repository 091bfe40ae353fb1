"""A store tunes its read-ahead (beside `farfield serve`); how long reads took is known decisions later, elsewhere."""

import queue
import random
import statistics
import sys
import threading

import farfield

AHEAD = (0, 4, 16, 64, 256)  # pages that are read ahead; 16 is what stores ship with
DEFAULT, WAIT, DECISIONS = 2, (3, 12), 40_000
SPEC = farfield.spec(obs=farfield.box(3), action=farfield.discrete(len(AHEAD)))
CONFIG = {
    "algorithm": {"kind": "ppo", "epochs": 8, "minibatch": 64, "learning_rate": 2e-3, "gamma": 0.8, "entropy": 0.02},
    "lanes": {"count": 4, "steps": 64},
    "credit_window": 0.2,  # seconds that rewards may take: the learner waits so long before it learns from a step
}  # fmt: skip


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
        app.credit(decision, -latency / 5)


def main(address="localhost:50051"):
    store, done, under_way, latencies = Store(1), queue.Queue(), [], []
    # This store's intervals take no time, so that it waits for its learner; a real one leaves `pace` out.
    with farfield.connect(address, run="store", spec=SPEC, config=CONFIG, pace=True) as app:
        accountant = threading.Thread(target=account, args=(app, done, latencies))
        accountant.start()
        app.wait(60)  # for a first policy
        episode = app.episode()  # one that never ends
        for now in range(DECISIONS):
            latency = store.read(AHEAD[episode.act(store.look())])
            under_way.append((now + random.randint(*WAIT), episode.decision, latency))
            for entry in [entry for entry in under_way if entry[0] <= now]:
                done.put(under_way.pop(under_way.index(entry))[1:])
        done.put(None)
        accountant.join()
    return latencies


def usual():
    """Give the latencies of the same workloads under the setting that stores ship with."""
    store = Store(1)
    return [(store.look(), store.read(AHEAD[DEFAULT]))[1] for _ in range(DECISIONS)]


if __name__ == "__main__":
    found, default, third = main(*sys.argv[1:]), usual(), DECISIONS // 3
    for name, part in (("first", slice(0, third)), ("last", slice(-third, None))):
        learned, fixed = statistics.mean(found[part]), statistics.mean(default[part])
        print(f"{name} third of the decisions: {learned:.2f} ms; with the usual setting {fixed:.2f} ms")
