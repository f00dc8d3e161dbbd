"""The author's contract: what an environment is, how its tools are declared, where it is found."""
