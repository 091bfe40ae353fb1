"""A module with a mistake that shows when it is imported, for the tests of faults."""

undefined_name  # noqa: B018, F821
