"""Update rules: one file each, with a frozen `Config` and a `make`."""
