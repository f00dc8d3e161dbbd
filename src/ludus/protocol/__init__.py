"""The OpenEnv wire as types. Nothing here opens a socket."""
