"""Generated from proto/farfield/v1 by `make proto`; edit the schema, not this."""
