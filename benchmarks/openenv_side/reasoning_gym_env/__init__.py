"""What `openenv collect` asks of an environment's package, on OpenEnv's own generic client.

OpenEnv keeps its environments outside of the package on PyPI, so the benchmark brings the two
classes that its command imports.
"""
