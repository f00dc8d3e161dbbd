"""A folder on the Hugging Face Hub: `hub` uploads it; `card` describes a data set, `model` says
which files make a model.
"""
