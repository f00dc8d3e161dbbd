"""Chat formats: rendering conversations to tokens and parsing replies into messages and tool calls."""
