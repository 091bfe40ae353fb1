"""The client's end of the Gateway service."""
