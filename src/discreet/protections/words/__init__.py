"""Word-level sanitizing: every word of a text is replaced under metric privacy."""
