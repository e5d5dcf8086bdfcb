"""TextHide: its accuracy over masks and mixtures, and the attacks on what it releases."""
