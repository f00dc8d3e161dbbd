"""Sessions: an environment to act in, in this process or behind a socket, with one behaviour."""
