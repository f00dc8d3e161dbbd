"""What the commands print: progress, summaries, tables and signals."""
