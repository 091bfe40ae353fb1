"""Adam against its textbook, tensor by tensor in double precision."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import pytest

from farfield.learning import optimiser
from farfield.learning.dense import dense


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_adam_is_the_papers_with_clipped_gradients(max_norm):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "bias": (4,), "scalar": ()}
    params = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
    state, step = optimiser.begin(params), jax.jit(optimiser.step)
    slow = {name: value.astype(float) for name, value in params.items()}
    m = v = dict.fromkeys(shapes, 0.0)
    for count in range(1, 6):
        grads = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
        params, state, norm = step(params, grads, state, rate=0.1, max_norm=max_norm)
        length = np.sqrt(sum((grad.astype(float) ** 2).sum() for grad in grads.values()))
        np.testing.assert_allclose(norm, length, rtol=1e-5)
        for name, grad in grads.items():
            clipped = grad * min(1.0, max_norm / length)
            m = m | {name: 0.9 * m[name] + 0.1 * clipped}
            v = v | {name: 0.999 * v[name] + 0.001 * clipped**2}
            change = (m[name] / (1 - 0.9**count)) / (np.sqrt(v[name] / (1 - 0.999**count)) + 1e-5)
            slow[name] = slow[name] - 0.1 * change
            np.testing.assert_allclose(params[name], slow[name], rtol=1e-4, atol=1e-5)


def test_the_rate_falls_linearly_to_nothing_and_stays_there():
    assert [optimiser.annealed(2.0, steps, 100) for steps in (0, 25, 100, 500)] == [2.0, 1.5, 0.0, 0.0]
    assert optimiser.annealed(2.0, 500, 0) == 2.0


def test_joined_tensors_come_back():
    tensors = {"a": np.float32([[1, 2], [3, 4]]), "b": np.float32(5), "c": np.zeros((0, 3), np.float32)}
    back = optimiser.split(optimiser.join(tensors), {name: value.shape for name, value in tensors.items()})
    for name, value in tensors.items():
        np.testing.assert_array_equal(back[name], value)


def test_the_fast_dense_layer_has_the_plain_ones_gradient():
    rng = np.random.default_rng(0)
    given = [rng.normal(size=shape).astype(np.float32) for shape in ((7, 5), (5, 3), (3,))]
    fast, slow = (
        jax.grad(lambda x, w, b, f=f: (f(x, w, b) ** 2).sum(), (0, 1, 2))(*given)
        for f in (dense, lambda x, w, b: x @ w + b)
    )
    for one, other in zip(fast, slow, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
