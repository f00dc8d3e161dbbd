"""A run folder as a data set on the Hugging Face Hub: `card` describes it, `hub` uploads it."""
