"""`discreet query`: protect or encrypt texts locally, send them, and print the answers."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, TextPair
from discreet.cli.output import as_json, line, note
from discreet.core.errors import BudgetError, DataError, OutputError, invalid, positive, setting, whole
from discreet.core.guarantee import in_digits, words_for_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.core.guarantee import Guarantee
    from discreet.local.client import Mixed, Sealed, UserSide
    from discreet.local.remote import About, RemoteServer

_MANY = 500


def query(
    folder: Annotated[Path, typer.Argument(metavar="CLIENT", help="Client folder of a run, such as runs/a/client.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts to classify. Default: see --file.")
    ] = None,
    server: Annotated[str, typer.Option("--server", help="Address of the server.")] = "http://127.0.0.1:8765",
    source: Annotated[
        str,
        typer.Option("--file", help="Text file with one text per line, or CSV, TSV, JSONL, Parquet; - reads stdin."),
    ] = "-",
    text: Annotated[str, typer.Option("--text", help="Column with the text.")] = "text",
    text_pair: TextPair = None,
    decoys: Annotated[
        int,
        typer.Option("--decoys", help="Hide each text among N generated texts; sends 3 (N + 1) vectors per text."),
    ] = 0,
    encrypted: Annotated[
        bool,
        typer.Option("--encrypted", help="Send encrypted vectors without noise; CLIENT may also be an ordinary run."),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 10.0,
    json: Json = False,
) -> None:
    """Query a server with protected vectors and print a label with its probability, or a score, for each text.

    The texts never leave this machine. They are encoded and randomized before
    the server is first contacted, so that it cannot time that work. The cost of
    each text is written to the client's ledger before its release is sent.
    In text files and arguments, a tab separates the two texts of a pair.

    With --decoys, each of several steps sends the vector of the text, with
    probability 1 / (N + 1), or that of a decoy. The noise is smaller at the
    same epsilon. This helps for a small epsilon and many decoys. A text that is
    never sampled has no answer.

    With --encrypted, vectors are encrypted with a new key that never leaves this
    machine, the server computes on the ciphertexts, and no budget is spent.
    """
    import numpy as np

    from discreet.local.client import UserSide
    from discreet.local.remote import RemoteServer

    remote = RemoteServer(server, positive("timeout", timeout, "It is in seconds."))
    whole("decoys", decoys, 0, "It is the number of generated texts per real text.")
    if encrypted:
        if decoys:
            raise invalid(
                "decoys", decoys, f"left out with {setting('encrypted', True)}", "There is no noise to reduce."
            )
        _query_encrypted(remote, folder, (texts, source, text, text_pair), json)
        return
    with UserSide.load(folder) as user:
        first, second = _texts(texts, source, text, text_pair, user.pairs)
        many = len(first) * (1 + decoys)
        if many > _MANY:
            note(f"Encoding {many:,} texts{', most of them decoys' if decoys else ''}: about a minute per 10,000.")
        # All work that depends on the texts precedes the first contact, so that the server cannot time it.
        mixed = _among(user, first, second, decoys) if decoys else None
        alone = user.prepare(first, second) if mixed is None else None
        about = remote.about()  # an unreachable or wrong server costs no budget
        if about.width != user.width:
            raise DataError(
                f"Expected a server for vectors of width {user.width}, got {about.width} at {server!r}. Use "
                "the server folder written with this client. Nothing was spent or sent."
            )
        remote.check_open(about)
        try:
            sent = mixed.open() if mixed is not None else None
            steps = sent.steps if sent is not None else (alone.open(),) if alone is not None else ()
        except BudgetError as error:
            raise BudgetError(error.message + " Nothing was sent.") from None
        try:
            answers = remote.answers(np.concatenate([step.vectors.numpy() for step in steps]), about)
        except (DataError, OutputError) as error:
            spent = " The texts are spent in the ledger, because the server may have seen them."
            raise type(error)(error.message + spent) from None
        if sent is None:
            _print(answers, user, user.guarantee, json)
        else:
            _print(_gathered(answers, sent, about), user, sent.guarantee, json)


def _query_encrypted(
    remote: RemoteServer,
    folder: Path,
    asked: tuple[list[str] | None, str, str, str | None],
    json: bool,
) -> None:
    vectors = _private_vectors(folder, asked)
    about = remote.about()
    if about.width != vectors.shape[1]:
        raise DataError(
            f"Expected a server for vectors of width {vectors.shape[1]}, got {about.width} at {remote.url!r}. Use the "
            "server of the same run. Nothing was sent."
        )
    answers, traffic = remote.encrypted_answers(vectors, about)
    if json:
        sizes = {"bytes_sent": traffic.sent, "bytes_received": traffic.received, "seconds": traffic.seconds}
        as_json({"answers": answers, "encrypted": {"scheme": "ckks", **sizes}})
        return
    for answer in answers:
        _print_answer(answer)
    note(
        f"Encrypted with a new key of this machine: {traffic.sent / 1e3:,.0f} kB sent, {traffic.received / 1e3:,.0f} "
        f"kB received in {traffic.seconds:.2f} s. The server saw no vector and no answer; no budget was spent."
    )


def _private_vectors(folder: Path, asked: tuple[list[str] | None, str, str, str | None]) -> npt.NDArray[np.float32]:
    """Return the vectors of texts without noise; they are encrypted before they leave."""
    import numpy as np

    from discreet.runs.folder import is_run, load_run

    if not is_run(folder):
        from discreet.local.client import UserSide

        with UserSide.load(folder) as user:
            return np.asarray(user.coordinates(*_texts(*asked, user.pairs)).numpy())
    from discreet.data.batches import tokenise
    from discreet.local.client import queries_of, same_work
    from discreet.models.classifier import classifier_of
    from discreet.training.evaluation import represent

    run = load_run(folder)
    model = classifier_of(run.model, "a query", "Encrypted answers need the head of a classifier.")
    if model.query is not None:
        raise DataError(f"Expected a run without local privacy, got {str(folder)!r}. Use its client folder.")
    corpus = queries_of(*_texts(*asked, run.settings.pairs))
    tokens = same_work(tokenise(corpus, model.tokenizer, model.max_length, model.device), model)
    return np.asarray(represent(model, tokens).numpy())


def _among(user: UserSide, first: list[str], second: list[str] | None, count: int) -> Sealed[Mixed]:
    from discreet.protections.local.decoys import Decoys

    return user.prepare_among(first, Decoys.of_vocabulary(user.model.tokenizer.get_vocab()), second, count=count)


def _gathered(answers: list[dict[str, Any]], mixed: Mixed, about: About) -> list[dict[str, Any] | None]:
    """Return the mean answer to each text over the steps in which it was sent, None if it never was."""
    import numpy as np

    values = np.array([a["probabilities"] if "probabilities" in a else [a["score"]] for a in answers], dtype=np.float32)
    means = mixed.collect(list(values.reshape(len(mixed.steps), -1, values.shape[1])))
    collected: list[dict[str, Any] | None] = []
    for mean in means.tolist():
        if math.isnan(mean[0]):
            collected.append(None)
        elif not about.task.has_classes:
            collected.append({"score": mean[0]})
        else:
            best = max(range(len(mean)), key=mean.__getitem__)
            collected.append({"label": about.labels[best], "probability": mean[best], "probabilities": mean})
    return collected


def _texts(
    arguments: list[str] | None, source: str, text: str, text_pair: str | None, pairs: bool
) -> tuple[list[str], list[str] | None]:
    from discreet.data.corpus import check_texts
    from discreet.data.tables import read_columns, split_pairs

    lines = list(arguments or ())
    if not lines:
        suffix = Path(source).suffix.lower() if source != "-" else ".txt"
        columns = (text, text_pair) if text_pair else (text,)
        if source == "-" and sys.stdin.isatty():
            raise DataError("Expected a TEXT argument, --file FILE, or text on stdin. Pass one of them.")
        read = read_columns(source, suffix, columns).texts
        if text_pair:
            return read[text], read[text_pair]
        lines = [line for line in read[text] if line.strip()]
    check_texts(lines, "the command line" if arguments else source)
    return split_pairs(lines) if pairs else (lines, None)


def _print_answer(answer: dict[str, Any] | None) -> None:
    if answer is None:
        line("-", "-", sep="\t")
    elif "score" in answer:
        line(f"{answer['score']:.4f}")
    else:
        line(answer["label"], f"{answer['probability']:.4f}", sep="\t")


def _print(answers: Sequence[dict[str, Any] | None], user: UserSide, per_text: Guarantee, json: bool) -> None:
    spent = user.spent()
    left = user.ledger.at_least(user.layer.event) if user.ledger.budget is not None else None
    if json:
        as_json(
            {
                "answers": answers,
                "per_text": per_text.as_dict(),
                "spent": spent.as_dict(),
                "queries_left_at_least": left,
            }
        )
        return
    for answer in answers:
        _print_answer(answer)
    missed = sum(answer is None for answer in answers)
    if missed:
        note(
            f"{missed} of {len(answers)} texts were never sampled and have no answer. Querying them again costs again."
        )
    kind = "" if per_text.certified else " (an estimate)"
    note(f"Each text: epsilon = {in_digits(per_text.epsilon)}, delta = {in_digits(per_text.delta)}{kind}.")
    total = in_digits(spent.epsilon) if math.isfinite(spent.epsilon) else "unbounded"
    weak = words_for_size(spent.epsilon) if spent.exists else ""
    more = "." if left is None else f"; at least {left:,} more are allowed."
    note(f"All queries of this client so far: epsilon = {total}, delta = {in_digits(spent.delta)}{more}{weak}")
