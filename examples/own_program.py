"""A program of your own, without Gymnasium: a shop decides whether to restock, and learns from what it earns.

Start `farfield serve` in one terminal, and this in another. Nobody resets the shop and nobody steps it. Its days are
short, so that it waits for its learner (`pace`); a program whose time is real leaves that out.
"""

import random
import sys
from collections import deque

import farfield

ROOM, FEE, RENT, PRICE = 10, 1.0, 0.1, 1.0  # shelf; cost of a delivery; of an item on the shelf; what a sale brings
SPEC = farfield.spec(
    obs={"stock": farfield.discrete(ROOM + 1), "weekend": farfield.multi_binary(1)},
    action=farfield.discrete(2),  # 0: wait, 1: fill the shelf
    mask=True,  # the shop says which of them is possible
)
CONFIG = {
    "algorithm": {"kind": "ppo", "epochs": 6, "minibatch": 256, "learning_rate": 3e-3, "gamma": 0.95},
    "lanes": {"count": 4, "steps": 128},
}


def earn(stock: int, weekend: bool) -> tuple[int, float]:
    """Sell for a day."""
    sold = min(stock, random.choice([1, 2, 3]) + 3 * weekend)
    return stock - sold, PRICE * sold - RENT * stock


def main(address: str, days: int) -> None:
    stock, weeks = 0, deque(maxlen=300)
    with farfield.connect(address, run="shop", spec=SPEC, config=CONFIG, pace=True) as app:
        app.wait(60)  # for a first policy
        episode = app.episode()  # one that never ends
        for day in range(days):
            weekend = day % 7 >= 5
            allowed = [True, stock < ROOM]  # a full shelf takes no delivery
            fill = episode.act({"stock": stock, "weekend": [weekend]}, mask=allowed)
            if fill:
                stock = ROOM
            stock, income = earn(stock, weekend)
            episode.reward(income - FEE * fill)
            weeks.append(income - FEE * fill)
            if day % 2000 == 1999:
                print(
                    f"day {day + 1}, version {app.counters().version}: {sum(weeks) / len(weeks):.2f} a day", flush=True
                )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051", int(sys.argv[2]) if len(sys.argv) > 2 else 40_000)
