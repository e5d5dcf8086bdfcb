"""Privacy accounting: events, accountants, calibration and the ledger, without tensors."""
