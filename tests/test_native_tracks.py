"""The native core passes the tests of the tracks that NumPy runs, as they stand."""

import os

import pytest

import test_tracks as suite
from farfield.serving import native
from test_tracks import *  # noqa: F403 - every test of it is one of this file too

if not native.available() and os.environ.get("CI") != "true":
    pytest.skip("farfield._native was not built here: no C++ compiler", allow_module_level=True)

from farfield import _native


@pytest.fixture(autouse=True)
def the_native_core(monkeypatch):
    for name in ("Track", "Slot", "Snapshot"):
        monkeypatch.setattr(suite, name, getattr(_native, name))
