"""Plants known faults in a copy of the source, one at a time, and runs the tests that ought to catch each.

`make test-faults`; or `python tests/planted_faults.py ledger noise` for the faults whose name has one of these words;
`--list` prints their names. A fault is a snippet that stands exactly once in `src/`, what it is replaced by, and the
names of tests; files are found by searching, so that modules and tests may move. Not part of `make test`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = (
    "src",
    "tests",
    "benchmarks",
    "reproductions",
    "tools",
    "examples",
    "docs",
    "studies",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)


@dataclass(frozen=True)
class Fault:
    """One edit that breaks a promise, and the tests that ought to fail then."""

    name: str
    snippet: str
    replacement: str
    tests: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()  # further edits, where one promise is kept in two places

    @property
    def edits(self) -> tuple[tuple[str, str], ...]:
        """All snippets with what replaces them."""
        return ((self.snippet, self.replacement), *self.more)


_ASKED_AT_RELEASE = (
    "        elif self._account is not None:\n            self._account.ledger.check_usable()\n",
    "",
)
FAULTS = (
    Fault(
        "a fork of the process takes steps that the ledger holds already",
        "                account.ledger.check_usable()\n            else:\n",
        "                pass\n            else:\n",
        ("test_a_fork_of_the_process_takes_no_step_with_the_same_noise",),
        (_ASKED_AT_RELEASE,),
    ),
    Fault(
        "a fork of the process releases a step that was begun before it",
        *_ASKED_AT_RELEASE,
        ("test_a_fork_in_the_middle_of_a_step_does_not_release_it",),
    ),
    Fault(
        "a second function is computed by the graphs of the first",
        "if self._losses_of not in (None, losses_of):",
        "if self._losses_of is self:",
        ("test_a_second_function_is_not_captured",),
    ),
    Fault(
        "a part that the loop wrote into counts as checked",
        "checked = self._is_as_collated(opened) and checked\n",
        "self._is_as_collated(opened)\n",
        ("test_a_part_that_the_loop_wrote_into_is_not_checked",),
    ),
    Fault(
        "the loss function is given what the loop put into a part",
        "                losses = losses(opened.handed.kept)\n",
        "                losses = losses(opened.handed.given)\n",
        ("test_other_tensors_in_a_part_are_not_used",),
    ),
    Fault(
        "parts of one unit count as checked",
        "        if not checked:\n            self._account.caveats.add(Caveat.UNCHECKED_LOSSES)\n"
        "        if self._check",
        "        if not checked and part.units > 1:\n            self._account.caveats.add(Caveat.UNCHECKED_LOSSES)\n"
        "        if self._check",
        ("test_a_scale_that_runs_over_parts_of_one_unit_is_not_checked",),
    ),
    Fault(
        "the check does not try rare draws",
        "LEVELS = (LOW, 1e-6, 1 - 1e-6, HIGH)",
        "LEVELS = (LOW, HIGH)",
        ("test_rows_that_are_mixed_in_train_mode_only_are_not_certified",),
    ),
    Fault(
        "the check does not replace the draws of Python",
        "((random, _python(self.level)), (np.random, _numpy(self.level)))",
        "((np.random, _numpy(self.level)),)",
        ("test_rows_that_are_mixed_in_train_mode_only_are_not_certified",),
    ),
    Fault(
        "the check does not try extreme rows",
        "            self._check_extremes()\n",
        "",
        ("test_a_part_that_is_left_out_for_one_extreme_row_is_rejected",),
    ),
    Fault(
        "numbers that a model keeps of its rows are not looked for",
        "self.writes = self.writes or bool(changed) or kept",
        "self.writes = self.writes or bool(changed)",
        ("test_what_a_model_keeps_of_its_rows_is_unprotected_state",),
    ),
    Fault(
        "a protected gradient may be written into",
        "known is not None and parameter.grad is not None and known.is_same(parameter.grad)",
        "known is not None and parameter.grad is known.tensor",
        ("test_a_gradient_that_somebody_adds_to_is_an_estimate",),
    ),
    Fault(
        "hooks of an optimizer may write into a protected gradient",
        "self._last = optimizer.register_step_pre_hook(last)",
        "self._last = None",
        ("test_a_hook_of_the_optimizer_that_adds_to_a_gradient_is_an_estimate",),
    ),
    Fault(
        "a loop's model is checked in evaluation mode",
        "for module, training in zip(modules, modes or before, strict=True):",
        "for module, training in zip(modules, [False] * len(modules), strict=True):",
        ("test_rows_that_are_mixed_in_train_mode_only_are_not_certified",),
    ),
    Fault(
        "a step with an error in one of its parts is released",
        "        self._abandon()\n        self._broken = reason\n",
        "        self._open = None\n",
        ("test_a_step_with_an_error_is_never_released",),
    ),
    Fault(
        "a training is resumed from any weights with the same noise",
        "self.resumed = self._draw_anew_if(self._keyed(_saved(model)) != expected, position)",
        "self.resumed = True",
        ("test_steps_that_are_taken_again_from_other_weights_are_counted_again",),
    ),
    Fault(
        "a training is resumed with any optimizer and the same noise",
        "self._draw_anew_if(self._keyed(optimizer.state_dict()) != expected, position)",
        "self._draw_anew_if(False, position)",
        ("test_another_optimizer_is_drawn_anew_from_the_step_after_it",),
    ),
    Fault(
        "values of weights are never compared",
        "if values and not self.is_changed:",
        "if False:",
        ("test_what_is_written_without_noise_is_found",),
    ),
    Fault(
        "optimizers that change no version are not noticed",
        "            elif moved:\n                self.is_changed = True\n",
        "",
        ("test_a_fused_optimizer_is_noticed_between_steps_whose_weights_are_compared",),
    ),
    Fault(
        "losses of any function count as checked",
        "return collate is None or collate == tried.collate",
        "return True",
        ("test_other_functions_than_those_that_were_checked_are_an_estimate",),
    ),
    Fault(
        "a loop that is left early costs what it took",
        "account.reserve(map(self.plan.step_cost, range(step, self.plan.steps)))",
        "0",
        ("test_a_training_that_is_left_early_costs_as_much_as_its_plan",),
    ),
    Fault(
        "the kernels of a loop are chosen when a shape occurs",
        "self._check.prepare(rows.sizes)",
        "self._check.prepare([])",
        ("test_the_kernels_of_all_units_do_not_depend_on_who_came",),
    ),
    Fault(
        "a run that stops early pays only for the steps it took",
        "counted = step + self.step.reserve(step)",
        "counted = step",
        ("test_the_steps_that_were_not_taken_are_counted",),
    ),
    Fault(
        "class names are read from private labels",
        "return trust_in(protect) | (frozenset({Caveat.PRIVATE_CLASSES}) if private else frozenset())",
        "return trust_in(protect)",
        ("test_names_of_classes_that_are_read_from_private_labels_make_the_figure_an_estimate",),
    ),
    Fault(
        "one unit's shape changes the kernels of all units",
        "self.unsteady or self.kernels.outcome(shape) is None",
        "self.unsteady or not self.kernels.choose([shape])",
        ("test_a_shape_that_is_found_later_is_a_caveat_and_changes_nothing",),
    ),
    Fault(
        "one unit that exhausts the memory changes the parts of all units",
        "        self._halve()\n        self.unsteady = True\n",
        "        self._halve()\n",
        ("test_memory_that_private_rows_exhaust_makes_the_guarantee_an_estimate",),
    ),
    Fault(
        "utility is measured on training rows",
        "        check_private_labels(request, corpus)\n        check_validation(corpus)\n",
        "        check_private_labels(request, corpus)\n",
        ("test_validation_rows_of_those_who_are_trained_on_are_rejected",),
    ),
    Fault(
        "trials are scored on private rows without noise",
        'check_other_text(self.score_on, self.data.source, "score_on")',
        "pass",
        ("test_the_private_rows_cannot_be_named_as_public_text_or_as_validation_rows",),
    ),
    Fault(
        "an audit does not measure what a unit adds to a sum",
        "share = max(_distance(one, without) for one in others) / self.norm",
        "share = 1.0",
        ("test_an_audit_of_a_run_refutes_every_planted_fault",),
    ),
    Fault(
        "an audit does not compare the noise of steps",
        'return Check(Aspect.NOISE_STEPS, _corrected([*pairs, *_by_block(parts, "totals", "width")]), found)',
        "return Check(Aspect.NOISE_STEPS, 1.0, found)",
        ("test_an_audit_of_a_run_refutes_every_planted_fault",),
    ),
    Fault(
        "an audit reads the batches of its canaries for those of the model",
        'yield _batches(record["batches"], Aspect.MODEL_BATCHES, int(record["misread"]))',
        'yield _batches(record["canaries"] or record["batches"], Aspect.MODEL_BATCHES, int(record["misread"]))',
        ("test_an_audit_of_a_run_refutes_every_planted_fault",),
    ),
    Fault(
        "an audit accepts files of another run",
        "if _digest(data) != digest:",
        "if not data:",
        ("test_a_file_of_the_audit_that_this_run_did_not_write_is_rejected",),
    ),
    Fault(
        "the record of an audit's steps is readable by everyone",
        "write_atomic(record_path(out), text)",
        "write_atomic(record_path(out), text, private=False)",
        ("test_nothing_in_a_run_folder_says_who_was_drawn",),
    ),
    Fault(
        "gradients are not clipped",
        "return (bound * (1 - _MARGIN) / norms).clamp_max(1.0)",
        "return torch.ones_like(norms)",
        ("test_no_unit_adds_more_than_the_clip_norm",),
    ),
    Fault(
        "the rows of one person are clipped one by one",
        "grouped = Units.of(units, rows)",
        "grouped = Units.of(None, rows)",
        ("test_a_step_is_the_clipped_sum_over_units_plus_noise_over_the_expected_size",),
    ),
    Fault(
        "half the noise",
        "return add_normals(sums, self.noise * self.clip.sensitivity, rng)",
        "return add_normals(sums, self.noise * self.clip.sensitivity / 2, rng)",
        ("test_the_noise_has_the_declared_width_and_is_fresh",),
    ),
    Fault(
        "noise seeded with a constant",
        'return lambda sums, step: self.release(sums, source.fork("noise", step))',
        'return lambda sums, step: self.release(sums, Rng(0).fork("noise", step))',
        ("test_no_two_secret_trainings_share_their_noise",),
    ),
    Fault(
        "the same noise at every step",
        'return lambda sums, step: self.release(sums, source.fork("noise", step))',
        'return lambda sums, step: self.release(sums, source.fork("noise"))',
        ("test_no_two_steps_of_a_training_share_their_noise",),
    ),
    Fault(
        "a resumed or repeated training reuses the noise of another",
        'return self.secret.fork("training", self.run) if self.secret.is_secret and self.run else self.secret',
        "return self.secret",
        ("test_the_noise_of_two_trainings_from_one_secret_does_not_cancel",),
    ),
    Fault(
        "noise rounded to float32 before it is added",
        "released = on_grid(values.double() + noise, std).to(values.dtype)",
        "released = values + noise.to(values.dtype)",
        (
            "test_what_is_left_of_a_release_lies_on_no_circles",
            "test_the_low_bits_of_a_release_do_not_tell_the_private_value",
        ),
    ),
    Fault(
        "the sum is divided by the size of the batch that was drawn",
        "            self.engine.finish(self.optimizer)\n",
        "            self.engine.size = max(1, len(planned.drawn))\n            self.engine.finish(self.optimizer)\n",
        ("test_a_step_is_the_clipped_sum_over_units_plus_noise_over_the_expected_size",),
    ),
    Fault(
        "an empty batch is released without noise",
        "        loss, count = gathered\n",
        "        loss, count = gathered\n        if not count:\n            return loss, count\n",
        ("test_an_empty_batch_still_adds_noise_and_is_counted",),
    ),
    Fault(
        "the sampler draws a fixed number instead of each unit by itself",
        '        source = rng.fork("batch", step)\n        if self.rate == 1:\n',
        '        source = rng.fork("batch", step)\n'
        "        return np.sort(source.permutation(n)[: round(n * self.rate)]).astype(np.int64)\n"
        "        if self.rate == 1:\n",
        ("test_the_size_of_a_poisson_batch_varies_as_that_of_independent_draws",),
    ),
    Fault(
        "rows are held out by a permutation of all units",
        "places = uniform(corpus, Purpose.HOLD_OUT, seed, adjacency)",
        "places = (Rng(seed).permutation(corpus.unit_count) / corpus.unit_count)[corpus.unit_index]",
        ("test_one_of_500_patients_removed_moves_no_other_patient", "test_one_unit_removed_moves_nobody_else"),
    ),
    Fault(
        "units are numbered by where they first appear",
        "return np.asarray(rank[corpus.unit_index])",
        "return corpus.unit_index",
        ("test_who_is_in_a_batch_does_not_depend_on_where_a_unit_first_appears",),
    ),
    Fault(
        "the ledger is not synced",
        "        try:\n            _sync(self._descriptor)\n        except OSError as error:\n",
        "        try:\n            pass\n        except OSError as error:\n",
        ("test_a_failed_sync_ends_the_use_of_the_ledger",),
    ),
    Fault(
        "the ledger is spent after the noise is used",
        "                self.account.spend(self.plan.step_cost(step))\n                gathered",
        "                gathered",
        ("test_the_ledger_is_spent_before_the_noise_is_drawn",),
        (
            (
                "            self.engine.finish(self.optimizer)\n            return",
                "            self.engine.finish(self.optimizer)\n"
                "            self.account.spend(self.plan.step_cost(step))\n            return",
            ),
            # All planned steps are counted before the first one, too.
            ("counted = step + self.step.reserve(step)", "counted = self.steps"),
        ),
    ),
    Fault(
        "a graph in which units change each other is used",
        "        return captured if captured is not None and captured.independent else None\n",
        "        return captured\n",
        ("test_a_graph_in_which_units_change_each_other_is_not_used",),
    ),
    Fault(
        "a captured step repeats the noise of the first one",
        'noise.use(source.fork("noise", step))',
        'noise.use(source.fork("noise", 0))',
        ("test_replayed_steps_give_the_weights_of_eager_ones",),
    ),
    Fault(
        "graphs do not say that a unit is not finite",
        "        if not self.engine.is_finite:\n",
        "        if self.steps < 0:\n",
        ("test_a_unit_that_is_not_finite_is_left_out_by_an_eager_step",),
    ),
    Fault(
        "the ledger does not check its budget",
        "            self._allowance.check(text, id)\n",
        "",
        ("test_a_budget_stops_training_before_it_is_exceeded",),
    ),
    Fault(
        "the ledger's total skips an event that was spent once",
        "        elif count:\n            distinct.append(event)\n",
        "        elif count > 1:\n            distinct.append(event)\n",
        ("test_a_spend_is_counted_and_receipted",),
    ),
    Fault(
        "a repeated spend with secure randomness is not counted",
        "        self.respent += name in self.ids\n        self.counts[self.in_force] += 1\n",
        "        self.respent += name in self.ids\n        self.counts[self.in_force] += name not in self.ids\n",
        ("test_with_secure_randomness_a_redone_step_is_spent_again",),
    ),
    Fault(
        "caveats in the ledger are not stated",
        "return replace(cost, assumptions=tuple(distinct)).with_caveats(self.terms.caveats)",
        "return replace(cost, assumptions=tuple(distinct))",
        ("test_a_fixed_seed_taints_every_later_statement_of_a_shared_ledger",),
    ),
    Fault(
        "a fixed seed counts as a secret",
        "        if self.secret.is_secret:\n            return Terms((SECRET_SEED",
        "        if True:\n            return Terms((SECRET_SEED",
        ("test_a_given_seed_makes_the_figure_an_estimate",),
    ),
    Fault(
        "an encoder trained on private text counts as public",
        "release=live, paid=model.settings.frozen)",
        "release=live, paid=True)",
        ("test_an_encoder_trained_along_makes_a_guarantee_of_vectors_an_estimate",),
    ),
    Fault(
        "a printed epsilon is rounded down",
        "if float(text) >= bound * (1 - 1e-9):",
        "if float(text) >= 0:",
        ("test_what_is_certified_is_not_rounded_below_what_is_proven",),
    ),
    Fault(
        "deltas do not add up in composition",
        "return math.fsum(e for e, _ in pairs), min(1.0, math.fsum(d for _, d in pairs))",
        "return math.fsum(e for e, _ in pairs), min(1.0, max(d for _, d in pairs))",
        ("test_basic_composition_adds_up_deltas",),
    ),
    Fault(
        "the adjacencies of a clipped sum are swapped",
        "moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1",
        "moved = 1 if adjacency is Adjacency.REPLACE_ONE else 2",
        ("test_sensitivity_is_ours_under_every_adjacency_and_both_accountants",),
    ),
    Fault(
        "an exchanged record moves a clipped sum by C instead of 2C",
        "moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1",
        "moved = 1",
        ("test_sensitivity_is_ours_under_every_adjacency_and_both_accountants",),
    ),
    Fault(
        "half the sensitivity in dp-ie",
        "return 2 * self.clip_norm * math.sqrt(self.load.squares)",
        "return self.clip_norm * math.sqrt(self.load.squares)",
        ("test_two_clipped_vectors_are_twice_the_norm_apart",),
    ),
    Fault(
        "an exact sum of pure epsilons depends on their order",
        "return math.fsum(count * _largest_loss(use, adjacency) for use, count in parts.uses)",
        "return sum(count * _largest_loss(use, adjacency) for use, count in parts.uses)",
        ("test_pure_costs_add_up_the_same_in_any_order",),
    ),
    Fault(
        "a mask of TextHide is used again in the next epoch",
        "self.order[epoch] = (self.masks_at(epoch - 1) + source.integers(1, m, self.rows)) % m",
        "self.order[epoch] = self.masks_at(epoch - 1)",
        ("test_a_sentence_gets_another_mask_in_every_epoch_and_the_pool_is_used_evenly",),
    ),
    Fault(
        "TextHide's masks have no signs",
        "return torch.from_numpy(bits.astype(np.float32) * 2 - 1).view(count, width)",
        "return torch.from_numpy(bits.astype(np.float32)).view(count, width)",
        ("test_masks_are_even_signs",),
    ),
    Fault(
        "dp-ie does not clip what it stores",
        "return clip(self.projected(vectors.double()), self.clip_norm)",
        "return self.projected(vectors.double())",
        ("test_vectors_are_cut_to_the_norm_and_what_is_not_finite_is_nothing",),
    ),
    Fault(
        "dp-ie does not clip what it hides at every step",
        'mixed = draws["mix"] @ clip(vectors, self.protect.clip_norm * (1 - ROUNDING))',
        'mixed = draws["mix"] @ vectors',
        ("test_at_every_step_an_epoch_is_counted_once_for_all_its_steps",),
    ),
    Fault(
        "ldp spends twice its epsilon",
        "return cls(mechanism, dimension, epsilon, clip_norm)  # pure: no delta is spent",
        "return cls(mechanism, dimension, 2 * epsilon, clip_norm)  # pure: no delta is spent",
        ("test_all_that_is_sent_keeps_the_budget",),
    ),
    Fault(
        "ldp does not clip",
        "return vectors.mul(self.clip_norm * (1 - 1e-6) / length.clamp_min(self.clip_norm))",
        "return vectors",
        ("test_what_is_long_is_clipped_and_what_is_short_is_left",),
    ),
    Fault(
        "santext draws words with the wrong probability",
        "draw_by_cost(distances.mul_(epsilon / 2), which[entries] - start, rng)",
        "draw_by_cost(distances.mul_(epsilon), which[entries] - start, rng)",
        ("test_choices_have_the_stated_probabilities",),
    ),
    Fault(
        "a label is told truthfully too often",
        "share = others / (math.exp(self.epsilon) + others) if self.epsilon < 700 else 0.0",
        "share = others / (math.exp(2 * self.epsilon) + others) if self.epsilon < 350 else 0.0",
        ("test_the_odds_of_the_truth_never_exceed_epsilon",),
    ),
    Fault(
        "the chance level is that of the true pairs",
        "successor = dict(zip(order, order[1:] + order[:1], strict=True))",
        "successor = dict(zip(order, order, strict=True))",
        ("test_a_leakage_carries_its_interval_size_and_chance_level",),
    ),
    Fault(
        "ROUGE-L counts too few common words",
        "corner, row[j + 1] = row[j + 1], corner + 1 if x == y else max(row[j], row[j + 1])",
        "corner, row[j + 1] = row[j + 1], corner + 1 if x == y else row[j]",
        ("test_the_common_subsequence_is_the_longest_one",),
    ),
    Fault(
        "ROUGE is recall instead of the F-measure",
        "return float(_scorer().score(truth, guess)[kind].fmeasure)",
        "return float(_scorer().score(truth, guess)[kind].recall)",
        ("test_the_two_kinds_of_rouge_l_differ_where_lengths_do",),
    ),
    Fault(
        "the interval of a rate is too narrow",
        '    tail = (1 - open_probability("confidence", confidence)) / 2\n    return float(lower_rates(',
        '    tail = 1 - open_probability("confidence", confidence)\n    return float(lower_rates(',
        ("test_rates_agree_with_scipy", "test_the_exact_interval_covers_at_least_as_often_as_it_says"),
    ),
    Fault(
        "the attacker's public text holds the text under attack",
        "return tuple(text for text in self.public if _normalized(text) not in excluded)",
        "return tuple(text for text in self.public if text not in excluded)",
        ("test_public_text_is_without_the_texts_under_attack_however_they_are_written",),
    ),
    Fault(
        "the order of the candidates tells the truth",
        'return tuple(texts[i] for i in rng.fork("order").permutation(len(texts)).tolist())',
        "return tuple(texts)",
        ("test_the_place_of_the_truth_among_the_candidates_says_nothing",),
    ),
    Fault(
        "a checkpoint can be read by everyone",
        "            temporary.chmod(_OWNER_ONLY)",
        "            temporary.chmod(0o644)",
        ("test_outputs_of_a_frozen_encoder_are_computed_once", "test_a_private_file_is_readable_by_its_owner_only"),
    ),
    Fault(
        "a file is not synced before it gets its name",
        "        sync_path(temporary)\n",
        "",
        ("test_file_and_folder_are_synced_in_order",),
    ),
    Fault(
        "the seed of the noise stays in a finished run",
        "        # Only now: a run that could not be renamed must still be able to resume with the same noise.\n"
        "        forget_secrets(out)\n",
        "",
        ("test_a_budget_is_kept_and_carried_everywhere",),
    ),
    Fault(
        "the loss on private rows is written down",
        "        if self.step.protection is None:\n            entry[",
        "        if True:\n            entry[",
        ("test_it_learns_and_says_what_it_cost",),
    ),
    Fault(
        "the server takes bodies of any size",
        "self.most_bytes = limits.body_bytes(head.width)",
        "self.most_bytes = 2**62",
        ("test_a_huge_body_is_refused_before_it_is_read",),
    ),
    Fault(
        "secure sum: shares are revealed without confirmation",
        "if len(valid) < self.settings.threshold:",
        "if not valid:",
        ("test_a_client_never_gives_both_shares_of_a_peer",),
    ),
    Fault(
        "secure sum: no mask of the client's own",
        'settings.ring.add_mask(hidden, keys.derived(self._seed, self._context, b"self", self.client))',
        "assert self._seed",
        ("test_the_sum_of_some_masked_vectors_stays_masked",),
    ),
    Fault(
        "secure sum: a message of another round is accepted",
        "if message.session != settings.session or message.round != settings.round:",
        "if message.session != settings.session:",
        ("test_the_server_rejects_wrong_messages_and_the_round_survives",),
    ),
    Fault(
        "secure sum: noise is counted for clients that collude",
        '"survivors": self.survivors_of(self.clients) - self.colluding,',
        '"survivors": self.survivors_of(self.clients),',
        ("test_the_threshold_is_checked_against_the_clients",),
    ),
    Fault(
        "secure sum: a rounded vector is not checked",
        "return int(np.dot(steps, steps)) <= self.squared_norm",
        "return True or int(np.dot(steps, steps)) <= self.squared_norm",
        ("test_a_vector_that_cannot_be_rounded_within_the_norm_is_rounded_towards_zero",),
    ),
    Fault(
        "secure sum: the loss of a client is sent",
        'return self.settings.aggregation.visible == "each"',
        "return True",
        ("test_noise_of_the_clients_is_in_the_ledger_of_the_server",),
    ),
    Fault(
        "the Trainer evaluates on its training rows",
        "self._trained_rows.check(dataset, name)",
        "pass",
        ("test_rows_and_units_of_the_train_dataset_are_not_evaluated_on",),
    ),
    Fault(
        "the Trainer evaluates on other rows of people it trains on",
        "common = set(map(_in_words, ids)) & set(map(_in_words, self.units))",
        "common: set[str] = set()",
        ("test_rows_and_units_of_the_train_dataset_are_not_evaluated_on",),
    ),
    Fault(
        "the Trainer evaluates on rows that do not say whose they are",
        "            ids = self._ids_of(dataset, self.unit)\n",
        "            ids = self._ids_of(dataset, self.unit) or []\n",
        ("test_rows_that_do_not_say_whose_they_are_are_not_evaluated_on",),
    ),
    Fault(
        "the Trainer evaluates on training rows of another length",
        "self._common_rows(dataset) or self._truncated_rows(dataset)",
        "self._common_rows(dataset)",
        ("test_training_rows_are_recognized_if_they_are_truncated_otherwise",),
    ),
    Fault(
        "validation rows are training rows but for one",
        "return shared if shared == len(held_out) or shared / len(held_out) > _SHARE + repeated else 0",
        "return shared if shared == len(held_out) else 0",
        ("test_rows_of_a_training_unit_never_choose_the_model",),
    ),
    Fault(
        "the gate reads weights without their figures as a ledger",
        "if path.is_dir() and (weights := ",
        "if False and (weights := ",
        ("test_weights_without_the_files_that_state_their_guarantee_do_not_pass_as_a_ledger",),
    ),
    Fault(
        "the gate reads the ledger of an unfinished run as a release",
        "if in_unfinished_run(file):",
        "if False:",
        ("test_the_ledger_of_an_unfinished_run_is_no_release",),
    ),
    Fault(
        "the gate accepts a guarantee without digests",
        "    if digests is None:\n        raise ModelError(",
        "    if digests is None:\n        return\n        raise ModelError(",
        ("test_a_folder_next_to_a_growing_ledger_keeps_its_figure",),
    ),
    Fault(
        "the Trainer logs how long its steps took",
        "super().log(public)  # with",
        "super().log(public, start_time)  # with",
        ("test_what_is_logged_and_returned_holds_no_loss_of_private_rows",),
    ),
    Fault(
        "the Trainer does not say how a checkpoint was chosen",
        "self.private.ledger.state(Terms((HELD_OUT, CHOICE, *self._choices())))",
        "self._choices()",
        ("test_held_out_rows_choose_the_checkpoint_and_the_guarantee_says_so",),
    ),
    Fault(
        "the ledger does not keep assumptions that are stated later",
        " and set(terms.assumptions) <= set(stated.assumptions)):",
        "):",
        ("test_early_stopping_by_held_out_rows_costs_all_planned_steps",),
    ),
    Fault(
        "people: trainings in Python are not recorded",
        "        ledger.also = entry\n        return entry",
        "        return entry",
        ("test_a_second_training_is_certified_by_itself_and_adds_up_in_the_record",),
    ),
    Fault(
        "people: an own loop is not recorded",
        "if account.ledger.also is None:",
        "if account.ledger.also is not None:",
        ("test_a_stopped_loop_leaves_at_least_what_it_spent_and_resuming_counts_it_once",),
    ),
    Fault(
        "people: the trials of a search are recorded with the search",
        "watch=self.watch(number), recorded=False)",
        "watch=self.watch(number))",
        ("test_a_training_within_a_training_counts_once",),
    ),
    Fault(
        "people: exchanging a person counts as one step of group privacy",
        "return EpsilonDeltaDpEvent(steps * bound, delta)",
        "return EpsilonDeltaDpEvent(bound, delta)",
        ("test_by_group_privacy_it_is_never_below_the_exact_cost",),
    ),
    Fault(
        "people: a given sensitivity is taken for that of another adjacency",
        "if _has_own_distance(event) and _is_covered(event, to):",
        "if _is_covered(event, to):",
        ("test_by_group_privacy_it_is_never_below_the_exact_cost",),
    ),
    Fault(
        "people: releases under another adjacency are left out of a total",
        "target = weakest([adjacency, *(Adjacency(record.adjacency) for record, _ in touched)])",
        "touched = [one for one in touched if one[0].adjacency == adjacency.value]\n            target = adjacency",
        ("test_releases_under_other_adjacencies_are_converted_to_the_weakest",),
    ),
    Fault(
        "people: an older copy of a ledger lowers the record",
        "if record.exact and Counter(record.spent) - used:",
        "if False:",
        ("test_an_older_copy_of_a_ledger_is_rejected_and_its_record_stays",),
    ),
    Fault(
        "people: a total over several releases does not say what it is proven for",
        "if self.releases > 1 and total.exists:",
        "if False:",
        ("test_a_total_over_several_releases_says_what_it_is_proven_for",),
    ),
    Fault(
        "people: a unit without groups is certified for each row",
        "self.unit not in (EACH_ROW, TextClassifier().unit)",
        "False",
        ("test_a_unit_needs_groups",),
    ),
    Fault(
        "people: state that a layer keeps of private rows is not noticed",
        "and _untrained_state(model) != state:",
        "and False:",
        ("test_a_layer_that_keeps_state_of_private_rows_is_a_caveat",),
    ),
    Fault(
        "people: rows of trained units choose the epoch",
        "if protect is not None and held_out is not None:",
        "if False:",
        ("test_rows_of_a_training_unit_never_choose_the_model",),
    ),
    Fault(
        "the gate believes the stated epsilon without the ledger",
        'figures["epsilon"] = (in_digits(stated.epsilon) + at, in_digits(computed.epsilon) + at)',
        "pass",
        ("test_the_gate_finds_the_same_figure_in_the_ledger_and_rejects_another",),
    ),
    Fault(
        "other weights pass the gate",
        "if found != recorded_digest:",
        "if found is None:",
        ("test_an_edit_of_one_file_fails_the_gate",),
    ),
    Fault(
        "a ledger that was cut at its end passes the gate",
        "if found is None or found.spends != spends or (whole.spends != spends and not grows):",
        "if False:",
        ("test_the_error_names_both_figures",),
    ),
    Fault(
        "an edited figure without a counterpart in the ledger passes the gate",
        "if own != now:",
        "if False:",
        ("test_an_edit_of_one_file_fails_the_gate",),
    ),
    Fault(
        "the folder of a private run counts truncated texts",
        "**({} if self.is_private else rows),",
        "**rows,",
        ("test_runs_on_neighbouring_corpora_differ_only_where_the_list_says",),
    ),
    Fault(
        "the page that is signed omits what limits the recommendation",
        "rows.append(Row(CAVEATS, caveats))",
        "pass",
        ("test_every_output_has_the_same_caveats",),
    ),
    Fault(
        "a federated run says which sampled clients took part",
        "                if aggregation.secret_clients:\n",
        "                if False:\n",
        ("test_nothing_that_is_written_or_printed_depends_on_who_took_part_or_failed",),
    ),
    Fault(
        "sampling of clients that are public reduces epsilon",
        "return 1.0 if self.public_clients else self.rate",
        "return self.rate",
        ("test_if_it_is_public_who_took_part_sampling_does_not_reduce_epsilon",),
    ),
    Fault(
        "a federated ledger holds only the steps so far",
        "        self.reserve(event, terms)\n",
        "",
        (
            "test_a_server_that_stops_after_one_round_does_not_make_the_figure_of_a_client_smaller",
            "test_a_run_that_is_stopped_costs_as_much_as_its_plan",
        ),
    ),
    Fault(
        "a federated client scores its held-out rows for any weights",
        'return dict(entry["scores"]) if self.is_seen and entry["weights"] == request else {}',
        "return self.evaluate(weights) if self.is_seen else {}",
        ("test_held_out_rows_are_scored_once_and_not_for_any_weights",),
    ),
    Fault(
        "a client whose noisy update is invalid drops out",
        "if reason is None or not self.settings.aggregation.is_noisy:",
        "if reason is not False:",
        ("test_a_client_whose_update_is_nan_answers_as_always_if_noise_protects_clients",),
    ),
)


def place_of(snippet: str, folder: Path) -> Path:
    """Return the one source file that holds a snippet, once."""
    found = {path: path.read_text(encoding="utf-8").count(snippet) for path in sorted(folder.rglob("*.py"))}
    places = [path for path, count in found.items() if count]
    if len(places) != 1 or found[places[0]] != 1:
        where = ", ".join(str(path.relative_to(folder)) for path in places) or "nowhere"
        raise LookupError(f"Expected the snippet exactly once in {folder.name}/, found it in: {where}.\n{snippet}")
    return places[0]


def nodes_of(tests: Sequence[str], folder: Path) -> list[str]:
    """Return the tests of these names as pytest selects them, wherever their files are."""
    nodes = []
    for name in tests:
        defined = re.compile(rf"^def {re.escape(name)}\(", re.MULTILINE)
        files = [path for path in sorted(folder.rglob("test_*.py")) if defined.search(path.read_text(encoding="utf-8"))]
        if not files:
            raise LookupError(f"Expected a test {name!r} in {folder.name}/, found none.")
        nodes += [f"{path}::{name}" for path in files]
    return nodes


class Copy:
    """A copy of the tree in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        """Copy what the tests need, without caches."""
        self.folder = folder
        self.now = time.time()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            elif source.exists():
                shutil.copy(source, folder / name)

    def write(self, path: Path, text: str) -> None:
        """Write a file with a time of its own, so that no compiled version of another text is used."""
        path.write_text(text, encoding="utf-8")
        self.now += 2
        os.utime(path, (self.now, self.now))

    def test(self, nodes: Sequence[str]) -> tuple[int, str]:
        """Run some tests until the first failure and return pytest's exit status and what it printed."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONPYCACHEPREFIX": str(self.folder / "compiled"),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "--tb=line", "-p", "no:cacheprovider", *nodes],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr


def unplaceable(fault: Fault, copy: Copy) -> str:
    """Return why a fault cannot be planted, or nothing."""
    try:
        for snippet, _ in fault.edits:
            place_of(snippet, copy.folder / "src")
        nodes_of(fault.tests, copy.folder / "tests")
    except LookupError as error:
        return f"{fault.name}: {error}"
    return ""


def planted(fault: Fault, copy: Copy) -> tuple[bool, str]:
    """Plant one fault, run its tests, take it out again, and return whether and by what it was caught."""
    nodes = nodes_of(fault.tests, copy.folder / "tests")
    before: dict[Path, str] = {}
    for snippet, replacement in fault.edits:
        path = place_of(snippet, copy.folder / "src")
        text = path.read_text(encoding="utf-8")
        before.setdefault(path, text)
        copy.write(path, text.replace(snippet, replacement))
    try:
        status, said = copy.test(nodes)
    finally:
        for path, text in before.items():
            copy.write(path, text)
    if status == 1:
        failed = re.search(r"^FAILED (\S+)", said, re.MULTILINE)
        return True, failed[1] if failed else ", ".join(fault.tests)
    last = said.strip().splitlines()[-1] if said.strip() else ""
    return False, f"pytest ended with status {status}: {last}" if status else f"passed: {', '.join(fault.tests)}"


def main(arguments: Sequence[str]) -> int:
    """Plant every fault that was asked for and return how many were not caught."""
    asked = [word for word in arguments if not word.startswith("-")]
    chosen = [fault for fault in FAULTS if not asked or any(word in fault.name for word in asked)]
    if "--list" in arguments:
        print(*(fault.name for fault in chosen), sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="discreet-faults-") as folder:
        copy = Copy(Path(folder))
        lost = [problem for fault in chosen if (problem := unplaceable(fault, copy))]
        if lost:
            print(*lost, f"Update {len(lost)} of {len(chosen)} faults: their code or tests have changed.", sep="\n")
            return len(lost)
        names = dict.fromkeys(name for fault in chosen for name in fault.tests)
        status, said = copy.test(nodes_of(list(names), copy.folder / "tests"))
        if status:
            print(said, f"Expected all {len(names)} tests to pass without a fault.", sep="\n")
            return len(chosen)
        print(f"{len(names)} tests pass without a fault.", flush=True)
        missed = 0
        for number, fault in enumerate(chosen, 1):
            began = time.monotonic()
            caught, by = planted(fault, copy)
            missed += not caught
            word = "caught" if caught else "MISSED"
            print(
                f"{number:2}/{len(chosen)}  {word}  {time.monotonic() - began:4.0f} s  {fault.name}  ({by})", flush=True
            )
    print(f"{len(chosen) - missed} of {len(chosen)} faults were caught.")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
