"""Import rollouts of other tools as run folders, one module or package per format."""
