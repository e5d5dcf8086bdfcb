"""Randomness applied to a value: frozen dataclasses with public settings, an explicit source, and a cost, `.event`."""
