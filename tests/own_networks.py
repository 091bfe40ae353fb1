"""Networks that lack something, for the tests of faults."""

from farfield.types import Network, Spec


def headless(spec: Spec) -> Network:
    """Decide nothing."""
    return Network(nodes=(), tensors={}, outputs={})
