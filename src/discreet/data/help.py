"""One sentence for each key of a text source: the help of its options and the descriptions of the schema of studies."""

HELP = {
    "source": "A built-in name, a file, a folder of splits, or hub:NAME.",
    "text": "Column with the text.",
    "text_pair": "Column with the second text of a pair.",
    "label": "Column with the class or the score.",
    "unit": "Column with the privacy unit, such as patient or author.",
    "rows": "Keep exactly this many training rows, or generate this many notes.",
    "share": "Keep about this share of the training units.",
    "max_per_unit": "Keep at most this many training rows of each unit.",
    "validation": "File with validation rows, or the share of units to hold out.",
    "task": "classification, regression or unlabelled; without it, inferred from the labels.",
    "classes": "Names of the classes; without them they are read from the labels, and guarantees are estimates.",
    "seed": "Random seed of generated notes and of the rows that are kept.",
    "separator": "Column separator of CSV and TSV files. Default: a comma for CSV, a tab for TSV.",
    "quoting": "csv: fields may be quoted; none: quotation marks are text. Default: csv for CSV files; for TSV files, "
    "detected from the file.",
}
