"""Chat formats: render conversations to tokens, and parse replies into messages and calls."""
