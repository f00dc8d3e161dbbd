"""The commands, one file each. What they call is imported when they run, so that help is fast."""
