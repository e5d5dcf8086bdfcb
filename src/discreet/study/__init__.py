"""From many trials to a decision: studies, sweeps that survive crashes, frontiers, and noise chosen by risk."""
