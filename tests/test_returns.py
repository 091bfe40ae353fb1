"""Returns against textbook versions: one lane, one row at a time, as obvious as possible."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.learning import returns
from farfield.learning.returns import Ends

T, B = 9, 3
GAMMA, LAM = 0.9, 0.8

# Compiled once for all drawn examples.
gae, vtrace, discounted = jax.jit(returns.gae), jax.jit(returns.vtrace), jax.jit(returns.discounted)
n_step = jax.jit(returns.n_step, static_argnames="n")


@st.composite
def rows(draw):
    """Draw random rewards, values, ratios, ends, and rows that are not valid."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([0.0, 0.1, 0.4]))
    valid = rng.random((T, B)) >= draw(st.sampled_from([0.0, 0.1, 0.5]))
    terminated = (rng.random((T, B)) < rate) & valid
    truncated = (rng.random((T, B)) < rate) & valid & ~terminated
    reward = np.where(valid, rng.normal(size=(T, B)), 0).astype(np.float32)
    value = rng.normal(size=(T + 1, B)).astype(np.float32)
    ratio = np.exp(rng.normal(size=(T, B))).astype(np.float32)
    return reward, value, ratio, Ends(terminated, truncated, valid)


def after(value, ends, t, b):
    """What is worth having after row t."""
    return 0.0 if ends.terminated[t, b] else value[t + 1, b]


def connected(ends, t, b):
    """Whether row t + 1 continues row t: it exists, is valid, and no end lies between."""
    ended = ends.terminated[t, b] or ends.truncated[t, b]
    return t + 1 < T and bool(ends.valid[t, b]) and bool(ends.valid[t + 1, b]) and not ended


def slow_gae(reward, value, ends):
    """Sum the surprises of all connected later rows, each discounted by its distance."""
    advantage = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight, i = 1.0, t
            while ends.valid[i, b]:
                advantage[t, b] += weight * (reward[i, b] + GAMMA * after(value, ends, i, b) - value[i, b])
                if not connected(ends, i, b):
                    break
                weight *= GAMMA * LAM
                i += 1
    return advantage


def slow_vtrace(reward, value, ratio, ends, rho_clip, trace_clip):
    """Sum rho-weighted surprises with products of clipped ratios between, as in equation 1 of the IMPALA paper."""
    target = value[:-1].astype(float)
    advantage = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight, i = 1.0, t
            while ends.valid[i, b]:
                surprise = reward[i, b] + GAMMA * after(value, ends, i, b) - value[i, b]
                target[t, b] += weight * min(rho_clip, ratio[i, b]) * surprise
                if not connected(ends, i, b):
                    break
                weight *= GAMMA * LAM * min(trace_clip, ratio[i, b])
                i += 1
        for t in range(T):
            if ends.valid[t, b]:
                advantage[t, b] = reward[t, b] + GAMMA * after(value, ends, t, b) - value[t, b]
                if connected(ends, t, b):
                    advantage[t, b] += GAMMA * LAM * (target[t + 1, b] - value[t + 1, b])
    return advantage, target


def slow_n_step(reward, value, ends, n):
    found = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight, i = 1.0, t
            while ends.valid[i, b]:
                found[t, b] += weight * reward[i, b]
                weight *= GAMMA
                if not connected(ends, i, b) or i - t + 1 == n:
                    found[t, b] += weight * after(value, ends, i, b)
                    break
                i += 1
    return found


def slow_discounted(reward, ends):
    found, complete = np.zeros((T, B)), np.zeros((T, B), bool)
    for b in range(B):
        for t in range(T):
            i, total, weight = t, 0.0, 1.0
            while ends.valid[i, b]:
                total += weight * reward[i, b]
                weight *= GAMMA
                if not connected(ends, i, b):
                    complete[t, b] = bool(ends.terminated[i, b] or ends.truncated[i, b])
                    break
                i += 1
            found[t, b] = total if complete[t, b] else 0.0
    return found, complete


@settings(max_examples=40, deadline=None)
@given(rows())
def test_gae_is_the_sum_of_discounted_surprises(drawn):
    reward, value, _, ends = drawn
    advantage, target = gae(reward, value, ends, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(advantage, slow_gae(reward, value, ends), atol=1e-5)
    np.testing.assert_allclose(target, value[:-1] + slow_gae(reward, value, ends), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(rows(), st.sampled_from([0.7, 1.0, 2.0]), st.sampled_from([0.7, 1.0, 2.0]))
def test_vtrace_is_the_papers_sum(drawn, rho_clip, trace_clip):
    reward, value, ratio, ends = drawn
    found = vtrace(reward, value, ratio, ends, gamma=GAMMA, lam=LAM, rho_clip=rho_clip, trace_clip=trace_clip)
    for fast, slow in zip(found, slow_vtrace(reward, value, ratio, ends, rho_clip, trace_clip), strict=True):
        np.testing.assert_allclose(fast, slow, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(rows())
def test_vtrace_without_lag_is_gae(drawn):
    reward, value, ratio, ends = drawn
    without_lag = vtrace(reward, value, np.ones_like(ratio), ends, gamma=GAMMA, lam=LAM)
    for one, other in zip(without_lag, gae(reward, value, ends, gamma=GAMMA, lam=LAM), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(rows(), st.integers(1, 5))
def test_n_step_stops_at_ends_at_gaps_and_after_n(drawn, n):
    reward, value, _, ends = drawn
    found = n_step(reward, value, ends, gamma=GAMMA, n=n)
    np.testing.assert_allclose(found, slow_n_step(reward, value, ends, n), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(rows())
def test_returns_need_an_end_unless_a_value_stands_for_the_rest(drawn):
    reward, value, _, ends = drawn
    found, complete = discounted(reward, ends, gamma=GAMMA)
    slow, slow_complete = slow_discounted(reward, ends)
    np.testing.assert_array_equal(complete, slow_complete)
    np.testing.assert_allclose(found, slow, atol=1e-5)
    found, complete = discounted(reward, ends, gamma=GAMMA, value=value)
    np.testing.assert_array_equal(complete, ends.valid)
    np.testing.assert_allclose(found, slow_n_step(reward, value, ends, T), atol=1e-5)


@pytest.mark.parametrize(("terminated", "expected"), [(True, 1.0), (False, 1.0 + GAMMA * 5.0)])
def test_truncation_bootstraps_and_termination_does_not(terminated, expected):
    no, yes = np.zeros((1, 1), bool), np.ones((1, 1), bool)
    ends = Ends(yes if terminated else no, no if terminated else yes, yes)
    value = np.float32([[0.0], [5.0]])
    for target in (
        gae(np.float32([[1.0]]), value, ends, gamma=GAMMA, lam=LAM)[1],
        n_step(np.float32([[1.0]]), value, ends, gamma=GAMMA, n=3),
    ):
        np.testing.assert_allclose(target, [[expected]], rtol=1e-6)
