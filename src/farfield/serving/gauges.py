"""The counts of all runs in, Prometheus's text out."""

from collections.abc import Iterable, Iterator
from time import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from farfield.serving.tallies import Counters

__all__ = ["CONTENT_TYPE_LATEST", "text"]
COUNTERS = {
    "fragments": "Fragments stored.",
    "steps": "Steps in stored fragments.",
    "bytes": "Bytes of stored fragments.",
    "credits": "Late rewards stored.",
    "repeated": "Fragments that came again.",
    "refused": "Payloads refused for good.",
    "put_off": "Payloads for which there was no room at first.",
}
GAUGES = {
    "clients": "Clients that were counted one by one.",
    "streams": "Streams that are remembered.",
    "waiting": "Fragments that are not durable yet.",
    "version": "Newest version; -1 before the first.",
    "version_age_seconds": "Time since the newest version came.",
    "learner_up": "1 while the run's learner runs.",
    "learner_crashes": "Crashes of the learner in a row.",
}


class Gauges:
    """One look at all runs: what Prometheus's client asks for families of numbers."""

    def __init__(self, found: Iterable[tuple[Counters, dict[str, Any]]]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Give every family once, with a number for each run."""
        for name, text in COUNTERS.items():
            family = CounterMetricFamily(f"farfield_gateway_{name}", text, labels=["run"])
            for counters, _ in self._found:
                family.add_metric([counters.run], getattr(counters.total, name))
            yield family
        letters = CounterMetricFamily("farfield_gateway_dead_letters", "Dead letters written.", labels=["run"])
        for counters, _ in self._found:
            letters.add_metric([counters.run], counters.dead_letters)
        yield letters
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"farfield_gateway_{name}", text, labels=["run"])
            for counters, learner in self._found:
                gauge.add_metric([counters.run], _value(name, counters, learner))
            yield gauge


def text(found: Iterable[tuple[Counters, dict[str, Any]]]) -> bytes:
    """Write the numbers of these runs (counters, and what is known of the learner) and of this process."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(Gauges(found))  # pyright: ignore[reportArgumentType]
    return generate_latest(registry)


def _value(name: str, counters: Counters, learner: dict[str, Any]) -> float:
    match name:
        case "clients":
            return len(counters.clients)
        case "version_age_seconds":
            return time() - counters.announced if counters.announced else 0.0
        case "learner_up":
            return float(learner.get("pid") is not None)
        case "learner_crashes":
            return float(learner.get("crashes", 0))
        case _:
            return float(getattr(counters, name))
