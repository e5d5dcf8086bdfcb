"""Texts with labels, where they come from, how they are sampled, and the secrets planted in them."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.data.canaries import Canary as Canary
    from discreet.data.canaries import Planting as Planting
    from discreet.data.canaries import plant_secrets as plant_secrets
    from discreet.data.corpus import Corpus as Corpus
    from discreet.data.corpus import clients_by_unit as clients_by_unit
    from discreet.data.corpus import dirichlet_clients as dirichlet_clients
    from discreet.data.corpus import equal_clients as equal_clients
    from discreet.data.corpus import without_overlap as without_overlap
    from discreet.data.samplers import CyclicPoisson as CyclicPoisson
    from discreet.data.samplers import FixedSize as FixedSize
    from discreet.data.samplers import Poisson as Poisson
    from discreet.data.samplers import RandomAllocation as RandomAllocation
    from discreet.data.samplers import Sampler as Sampler
    from discreet.data.samplers import Shuffled as Shuffled
    from discreet.data.samplers import TruncatedPoisson as TruncatedPoisson
    from discreet.data.sources import Columns as Columns
    from discreet.data.sources import TextSource as TextSource
    from discreet.data.sources import load as load

_NAMES = {
    "discreet.data.canaries": ("Canary", "Planting", "plant_secrets"),
    "discreet.data.corpus": ("Corpus", "clients_by_unit", "dirichlet_clients", "equal_clients", "without_overlap"),
    "discreet.data.samplers": (
        "CyclicPoisson",
        "FixedSize",
        "Poisson",
        "RandomAllocation",
        "Sampler",
        "Shuffled",
        "TruncatedPoisson",
    ),
    "discreet.data.sources": ("Columns", "TextSource", "load"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
