"""The only training loop, evaluation, checkpoints and run folders."""
