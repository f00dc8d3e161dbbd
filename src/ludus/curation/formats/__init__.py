"""Files of other tools: read into a run (`run_import`), and written from episodes."""
