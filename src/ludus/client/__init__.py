"""Sessions on environments, in this process or on a server, with the same behaviour."""
