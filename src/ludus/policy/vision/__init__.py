"""Pictures for local models that can see: which models do, what they are shown, how they go on.

A model's eyes are an `Eyes` (`sight`); a model that reads only text has none.
"""
