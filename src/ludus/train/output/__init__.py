"""What a training run writes: its folder, record, log, checkpoints, model, card and plots."""
