"""Private training of other people's models: own PyTorch loops, and the Hugging Face Trainer."""
