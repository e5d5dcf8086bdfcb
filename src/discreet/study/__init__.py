"""Studies: many trials of protections and attacks, the frontier of utility and leakage, and a recommendation.

`run("study.toml")` runs a study and returns its `StudyResult`. One study is one folder; its modules, in the order of
the work: `file` reads a study, `grid` plans its trials, `trial` runs one, `workers` run many in processes or on Ray,
`sweep` runs those that `store` does not hold yet, `frontier` compares settings, `noise_for_risk` solves for the noise
that keeps a ceiling, and `result` puts them together.
"""

from discreet.study.file import Goal, Study, read_study
from discreet.study.frontier import Measured, Point
from discreet.study.result import IncompleteError, StudyResult, read_result, run

__all__ = ["Goal", "IncompleteError", "Measured", "Point", "Study", "StudyResult", "read_result", "read_study", "run"]
