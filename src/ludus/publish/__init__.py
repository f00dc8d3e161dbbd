"""Publishing runs and models on the Hugging Face Hub."""
