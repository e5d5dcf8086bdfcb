from __future__ import annotations

from discreet.data.sources import Columns, load
from discreet.experiment.plan import RunRequest
from discreet.experiment.training import warn_of_size
from discreet.models.classifier import ModelSettings
from discreet.training.settings import TrainSettings


def test_rows_of_what_is_built_in_count_held_out_ones_too() -> None:
    said: list[str] = []
    corpus = load("notes", rows=40)
    for rows in (40, 41):
        request = RunRequest("notes", Columns(), ModelSettings(), TrainSettings(), rows=rows)
        warn_of_size(request, corpus, said.append)
    assert len(said) == 1 and "--rows 41 keeps them all" in said[0]
