"""The local web page of `ludus view`: run folders, evaluations, data sets and trained models."""
