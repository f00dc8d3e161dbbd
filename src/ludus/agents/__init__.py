"""Who acts. An agent sees tools and observations, and answers with tool calls."""
