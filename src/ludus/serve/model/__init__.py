"""`ludus serve-model`: a local model behind OpenAI's API."""
