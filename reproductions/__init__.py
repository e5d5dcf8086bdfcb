"""The figures and tables of the papers that the package implements, measured again: one folder per paper."""
