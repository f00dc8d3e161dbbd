"""Local models: loading, chat formats, sampling, and an agent that plays with them."""
