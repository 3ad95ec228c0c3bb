"""Equal tuning of all variants, and what a curve tells: each is a pure function of recorded runs.

Every variant gets the same small grid, on one seed and a third of the steps, and is chosen by its loss on validation
texts. The grid is searched in two sweeps, which take half the runs of all pairs: first the learning rate, with
the tables' factor at its default of 10; then, for the variants that have tables, the factor at the best of these rates.
So a pair that is good only together can be missed, and the variants with tables get three more tries than the others.
A tuning run has the whole schedule in its third of the steps, and the best rate of a longer run can be a lower one: so
at the end the variants with most seeds have the rates that were not chosen with all steps too, one seed of each. The
final runs have other seeds than the tuning, and a tuning run is never measured on test texts.

Read top-down: the stages of a tuned suite, the choice, the curve.
"""

from functools import cache

import torch

from synth_lib.lab.train import table_parameters
from synth_lib.models import LanguageModel

RATES = (1, 2, 3)  # times the learning rate of the task
FACTOR, FACTORS = 10.0, (3.0, 30.0, 100.0)  # of the first sweep, and those that the second adds
TUNING_SEED = 0  # the final seeds begin at 1


def tuned_stages(task_name, task_settings, scores, seeds, *, grid=(RATES, FACTORS), share=3):
    """The stages of a Suite, functions of the recorded runs that give runs: two sweeps, "final", and "choice".

    scores: {variant: its score}. seeds: {variant: number of final runs}. The variants with most seeds come first, a
    seed of each in turn; a variant whose tuning runs are not all recorded waits. "choice" has the rates that were not
    chosen. grid: its rates and the factors of the second sweep. share: a tuning run has one of so many steps.
    """
    settings, (grid_rates, grid_factors) = task_settings["settings"], grid
    whole = {"steps": settings["steps"], "warmup": settings["warmup"]}
    shorter = {name: round(number / share) for name, number in whole.items()}
    with_tables = [variant for variant, score in scores.items() if has_tables(score)]

    def run(question, variant, seed, rate, factor, steps):
        more = {"learning_rate": rate, "r_learning_rate_factor": factor} | steps
        return {
            "question": question, "task": task_name, "variant": variant, "seed": seed, "model": {}, "settings": more,
        }  # fmt: skip

    def rate_runs(variant):
        rates = [number * settings["learning_rate"] for number in grid_rates]
        return [run("tuning", variant, TUNING_SEED, rate, FACTOR, shorter) for rate in rates]

    def factor_runs(variant, recorded):
        best = best_settings(rate_runs(variant), recorded)
        if variant not in with_tables or best is None:
            return []
        return [run("tuning", variant, TUNING_SEED, best["learning_rate"], factor, shorter) for factor in grid_factors]

    def choices(recorded):
        """{variant: (rate, factor)} of the variants whose tuning is done, those with most seeds first."""
        tuning = {variant: rate_runs(variant) + factor_runs(variant, recorded) for variant in scores}
        best = {variant: best_settings(runs, recorded) for variant, runs in tuning.items()}
        ready = sorted((variant for variant in scores if best[variant]), key=lambda variant: -seeds[variant])
        return {variant: tuple(best[variant].values()) for variant in ready}

    def rate_sweep(recorded):
        return [run for variant in scores for run in rate_runs(variant)]

    def factor_sweep(recorded):
        return [run for variant in scores for run in factor_runs(variant, recorded)]

    def final(recorded):
        chosen, runs = choices(recorded), []
        for count in sorted({seeds[variant] for variant in chosen}, reverse=True):
            group = [variant for variant in chosen if seeds[variant] == count]
            for seed in range(1, count + 1):
                runs += [run("final", variant, seed, *chosen[variant], whole) for variant in group]
        return runs

    def choice(recorded):
        chosen, most = choices(recorded), max(seeds.values())
        return [
            run("choice", variant, 1, number * settings["learning_rate"], factor, whole)
            for variant, (rate, factor) in chosen.items()
            for number in grid_rates
            if seeds[variant] == most and number * settings["learning_rate"] != rate
        ]

    return rate_sweep, factor_sweep, final, choice


@cache
def has_tables(score):
    """Whether a score has tables that learn, such as R: to them r_learning_rate_factor applies."""
    with torch.device("meta"):
        return bool(table_parameters(LanguageModel(2, d_model=4, head=1, layer=1, max_length=4, score=score)))


# --- The choice ---


def best_settings(asked, recorded):
    """The {"learning_rate", "r_learning_rate_factor"} of the tuning run with the lowest loss on validation texts.

    asked: the tuning runs that are compared, all of one variant. recorded: the runs of the record. Of equal losses the
    first asked for counts; a failed run has lost. None if one is not in the record yet, or if all failed.
    """
    results = [next((other for other in recorded if run.items() <= other.items()), None) for run in asked]
    finished = [result for result in results if result and result["status"] == "finished"]
    if None in results or not finished:
        return None
    best = min(finished, key=lambda result: result["metrics"]["loss"])
    return {name: best["settings"][name] for name in ("learning_rate", "r_learning_rate_factor")}


# --- The curve: [[step, loss], ...] on validation texts ---


def settled(curve):
    """The rule of length: whether the loss falls by less than 1 % in the last fifth of the steps.

    The fifth begins at the last point of the curve that does not lie in it. Raises ValueError for less than two points.
    """
    if len(curve) < 2:
        raise ValueError(f"a curve needs two points or more to say whether it is settled, not {len(curve)}")
    last_step, last_loss = curve[-1]
    before = [loss for step, loss in curve if 5 * step <= 4 * last_step][-1]
    return before - last_loss < 0.01 * before


def steps_to(curve, loss):
    """The first step of the curve at which the loss is at most `loss`, or None."""
    return next((step for step, value in curve if value <= loss), None)
