"""What a run is on disk: its settings, checkpoints, folder and card, and this machine's record of people."""
