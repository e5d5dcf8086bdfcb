"""Audits: measured lower bounds of epsilon, beside the proven upper bounds."""
