"""How well slopes of the loss name the right word at a place: those of one text, and their mean over drawn words.

    python -m benchmarks.word_slopes DATA --prior PRIOR --noise 0.014 0.043 0.14

Of each sentence some words are replaced by others, drawn from the 2,000 most frequent; at one of these places every
word is ranked by slope · vector. Shown is the median rank of the right one among all words (0 is the first; chance is
half of the vocabulary) with 1, 2, 4 and all words wrong, and the share of right words among the first hundredth. In the
last row texts are drawn whole, every word by its frequency, and every place is ranked by the mean slope over them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from discreet.attacks.matching.engine import set_up
from discreet.attacks.matching.objective import MeanCosine, Objective
from discreet.attacks.matching.problems import Vocabulary
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge
from discreet.data.sources import load
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import protected_release

WRONG = (1, 2, 4, 99)
DRAWS, WHOLE = 16, 128
COMMON = 2000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--prior", type=Path, required=True)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.014, 0.043, 0.14])
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def ranks(
    objective: Objective, vocabulary: Vocabulary, truth: torch.Tensor, common: torch.Tensor, wrong: int, rng: Rng
) -> tuple[int, int]:
    """Return the rank of the right word by the slope at one text, and by the mean over several words at its place."""
    source = rng.torch("cpu")
    words = objective.imitation.words
    places = 1 + torch.randperm(len(truth) - 2, generator=source)[:wrong]
    text = truth.clone()
    text[places] = common[torch.randint(len(common), (len(places),), generator=source)]
    place = int(places[0])
    texts = text.repeat(DRAWS + 1, 1)
    texts[1:, place] = common[torch.randint(len(common), (DRAWS,), generator=source)]
    _, slopes = objective.slopes(words[texts][None, :, None])
    rows, right = words[vocabulary.allowed], words[truth[place]]
    one, mean = slopes[0, 0, 0, place], slopes[0, 1:, 0, place].mean(0)
    return int((rows @ one < right @ one).sum()), int((rows @ mean < right @ mean).sum())


def drawn_ranks(objective: Objective, vocabulary: Vocabulary, truth: torch.Tensor, prior: NGram, rng: Rng) -> list[int]:
    """Return the rank of the right word at every place by the mean slope over texts that are drawn whole."""
    source = rng.torch("cpu")
    words = objective.imitation.words
    total = torch.zeros(len(truth), words.shape[1])
    for _ in range(WHOLE // DRAWS):
        texts = truth.repeat(DRAWS, 1)
        odds = prior.unigrams[vocabulary.allowed]
        chosen = torch.multinomial(odds, DRAWS * (len(truth) - 2), True, generator=source)
        texts[:, 1:-1] = vocabulary.allowed[chosen].view(DRAWS, -1)
        total += objective.slopes(words[texts][None, :, None])[1][0, :, 0].sum(0)
    rows = words[vocabulary.allowed]
    return [int((rows @ total[p] < words[truth[p]] @ total[p]).sum()) for p in range(1, len(truth) - 1)]


def shown(ranks: list[int], count: int) -> str:
    """Return the median of some ranks and the share of them in the first hundredth."""
    first = sum(rank < count / 100 for rank in ranks) / len(ranks)
    return f"{sorted(ranks)[len(ranks) // 2]:9,} ({first:4.0%})"


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpus = load(asked.data)
    model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model, dropout=0.0)
    texts = corpus.split("train")
    order = rng.fork("texts").permutation(len(texts)).tolist()
    chosen = [i for i in order if 6 <= len(texts.texts[i].split()) <= 10][: asked.sentences]
    if not chosen:
        raise SystemExit(f"Expected texts of 6 to 10 words in {asked.data!r}, found none.")
    prior = NGram.load(asked.prior)
    print(f"{'noise':>6} {'wrong words':>12} {'one text':>16} {f'mean of {DRAWS}':>16}")
    for noise in asked.noise:
        defence = DPSGD(noise, 1.0)
        found: dict[int, list[tuple[int, int]]] = {wrong: [] for wrong in WRONG}
        whole: list[int] = []
        count = 0
        for i in chosen:
            row = texts.take([i])
            seen = protected_release(model, row, defence, rng.fork("release", i), delta=1e-5)
            _, objective = set_up([seen], Knowledge(model=model, defence=defence), MeanCosine(), "this")
            vocabulary = Vocabulary.of(model, objective.imitation.words)
            count = len(vocabulary.allowed)
            common = vocabulary.allowed[prior.unigrams[vocabulary.allowed].topk(COMMON).indices]
            truth = torch.tensor(model.tokenizer(row.texts[0])["input_ids"])
            whole += drawn_ranks(objective, vocabulary, truth, prior, rng.fork(i, "whole"))
            for wrong in WRONG:
                for turn in range(4):
                    found[wrong].append(ranks(objective, vocabulary, truth, common, wrong, rng.fork(i, wrong, turn)))
        for wrong, pairs in found.items():
            one, mean = (shown([pair[side] for pair in pairs], count) for side in (0, 1))
            print(f"{noise:6g} {'all' if wrong == max(WRONG) else wrong:>12} {one} {mean}", flush=True)
        print(f"{noise:6g} {WHOLE:>6} texts drawn whole {'':5} {shown(whole, count)}", flush=True)


if __name__ == "__main__":
    main()
