"""The types and frames of OpenEnv's protocol, and how observations are rendered; no I/O."""
