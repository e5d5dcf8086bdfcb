"""What a mechanism costs: events, accountants, calibration, and the ledger. Never a tensor."""
