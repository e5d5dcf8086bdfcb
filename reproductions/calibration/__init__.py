"""Calibrating the noise of DP-SGD by reconstruction attacks: what LAMP, TAG and DLG read, utility against leakage."""
