"""The experiments of chapters 10 and 13: which runs there are.

    python -m synth_lib.lab suite live --out runs/live.jsonl --workers 2

A run is a dictionary of plain values: which task, which variant, which seed, and what differs from the settings of
the task, which all variants share. A suite is a list of runs, the most important first.

Read top-down: variants, settings of the tasks, suites. `tasks` says what a task is and does one run, `runner` all.
"""

from dataclasses import dataclass

from synth_lib.lab.train import Settings
from synth_lib.lab.tuning import tuned_stages

VARIANTS = {
    "Vanilla": "dot_product",
    "Dense": "dense",
    "Random": "random",
    "Fixed Random": "fixed_random",
    "Factorized Dense": "factorized_dense",
    "Factorized Random": "factorized_random",
    "Random + Vanilla": "random + dot_product",
    "Dense + Vanilla": "dense + dot_product",
    "Random + Dense": "random + dense",
}
WIDER = "Vanilla, wider"  # the control: as many parameters as the largest mixture
MAIN = ("Vanilla", "Dense", "Random")  # the question in short: they come first in the tuned suites, with more seeds
WITH_MAPS = MAIN  # their attention weights are recorded, of the first seed
COPY = "copy nearest"  # the baseline that gives each test text the answer to the nearest training text
ONE_REPLY = "one reply"  # the baseline of dialogues that replies to every context with what is most frequent
WORDS = "tuned words"  # the same with the words that have the highest ROUGE-L on validation replies
TUNED = "tuned counting"  # the baseline of n-grams whose order and weights are chosen on validation text

# --- The settings of each task: one set for all variants. "wider" is d_model of the control. ---

# nanoGPT's CPU setting on tiny Shakespeare, whose published loss of 1.88 is on the split that is "test" here. Its
# training text is 5 % longer, by the validation text here. "all": every window of a split; the curve has fewer.
NANOGPT = {
    "language model": {
        "data": {"tokens": "characters", "corpus": "tinyshakespeare", "windows": "all", "curve_windows": 256},
        "model": {"d_model": 128, "head": 4, "layer": 4, "max_length": 64, "bias": False},
        "settings": {
            "steps": 2000, "batch": 12, "warmup": 100, "learning_rate": 1e-3, "final_learning_rate": 0.1,
            "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "evaluate_every": 100, "precision": "float32",
        },
    },
}  # fmt: skip

# nanoGPT's setting for a GPU on the same text and split, whose published loss is 1.4697.
GPU = {
    "language model": {
        "data": NANOGPT["language model"]["data"],
        "model": {"d_model": 384, "head": 6, "layer": 6, "max_length": 256, "bias": False, "dropout": 0.2},
        "settings": {
            "steps": 5000, "batch": 64, "warmup": 100, "learning_rate": 1e-3, "final_learning_rate": 0.1,
            "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "evaluate_every": 250, "precision": "auto",
        },
    },
}  # fmt: skip

# Two variants of NANOGPT while a reader waits, at the rates that its tuning chose.
LIVE_STEPS = 700
LIVE_RATES = {"learning_rate": 2e-3, "r_learning_rate_factor": 10.0}

# More than twice the steps of NANOGPT: does its order last? The rates are the best of one seed with all 2,000 steps, in
# its record and, beyond its grid for Vanilla, in this one; they are not tuned again for this length.
LONGER_STEPS = 5000
BEYOND = {"Vanilla": (4e-3, 6e-3)}  # learning rates
LONGER_RATES = {"Vanilla": (3e-3, 10.0), "Dense": (2e-3, 10.0), "Random": (2e-3, 100.0)}  # rate, factor of the tables

TINY = {
    "language model": {
        "data": {"tokens": "characters", "windows": 8},
        "model": {"d_model": 64, "head": 4, "layer": 2, "max_length": 32},
        "settings": {"steps": 8, "batch": 4, "warmup": 2, "learning_rate": 4e-3, "evaluate_every": 4},
    },
}

# The grammar, as near to the rule of length as three trials of Vanilla bring it: small batches and many different
# sentences, without dropout and with few passes. With a rate that ends near 0, 3,000 steps were too few by the rule;
# whether these are enough, the record says.
GRAMMAR = {
    "translation, grammar": {
        "data": {"train": 100_000},
        "model": {"d_model": 96, "head": 4, "layer": 2, "max_length": 15, "dropout": 0.0},
        "settings": {
            "steps": 4200, "batch": 64, "warmup": 210, "learning_rate": 1e-3, "final_learning_rate": 0.01,
            "evaluate_every": 210, "precision": "float32",
        },
        "wider": 100,
    },
}  # fmt: skip

# Everyday sentences, about 10 minutes a run of one core: a vocabulary that keeps the last product small, and small
# batches, since steps count for more than sentences a step at this length. No sentence is too long for the model.
TATOEBA = {
    "translation, tatoeba": {
        "data": {"language": "tatoeba", "vocab": 2000},
        "model": {"d_model": 128, "head": 4, "layer": 2, "max_length": 43, "dropout": 0.1},
        "settings": {
            "steps": 4500, "batch": 64, "warmup": 225, "learning_rate": 1e-3, "final_learning_rate": 0.01,
            "evaluate_every": 225, "precision": "float32",
        },
    },
}  # fmt: skip

# What to say next: about 10 minutes a run of one core. Most of a step is the source, which is why it ends at 95 tokens:
# what is cut is the persona of the other, who is not to speak. The validation texts share personas with training.
DIALOGUE = {
    "dialogue": {
        "data": {"vocab": 2000, "max_length": 96, "turns": 2, "most": 2000},
        "model": {"d_model": 96, "head": 4, "layer": 2, "max_length": 96, "dropout": 0.1},
        "settings": {
            "steps": 2400, "batch": 32, "warmup": 120, "learning_rate": 1e-3, "final_learning_rate": 0.01,
            "evaluate_every": 120, "precision": "float32",
        },
    },
}  # fmt: skip


def in_a_race(length, kept=32):
    """The variants of chapter 10 at this length: what makes S, and the pattern of each layer, as plain values.

    Each query keeps `kept` keys at most; strided, whose stride is about sqrt(length), a few less in each half of its
    heads, and together about as many.
    """
    dot, random = {"score": "dot_product"}, {"score": "random"}
    window = {"pattern": {"kind": "window", "size": kept}}
    return {
        "full": dot,
        "window": dot | window,
        "strided": dot | {"pattern": {"kind": "strided", "stride": 16}},
        "hashed": dot | {"pattern": {"kind": "hashed", "hashes": 8, "keep": kept}},
        "routed": dot | {"pattern": {"kind": "routed", "clusters": length // kept, "keep": kept}},
        "Random": random,
        "Random in a window": random | window,
    }


# Why? NANOGPT with one thing changed, each tuned anew: the best rate may depend on the rank, the heads or the start.
# What is not changed, rank 8, 4 heads and R as it is drawn, is in the record of nanogpt.
WHY = {
    "language model": NANOGPT["language model"] | {
        "variants": {
            **{
                f"Factorized Random, rank {rank}": {"score": "factorized_random", "rank": rank}
                for rank in (2, 4, 16, 32)
            },
            **{
                f"{variant}, {head} head{'s' * (head > 1)}": {"score": VARIANTS[variant], "head": head}
                for head in (1, 2, 8) for variant in ("Vanilla", "Random")
            },
            "Random, starts uniform": {"score": "random", "start": {"kind": "uniform"}},
            "Random, starts at the token before": {"score": "random", "start": {"kind": "shifted", "offset": -1}},
            "Random, starts falling with distance": {"score": "random", "start": {"kind": "decaying", "rate": 0.5}},
        },
    },
}  # fmt: skip

# The race of chapter 10, two hours of one core in all: small models, and short trainings. Look-ups are learned in a
# jump, which a shorter training does not reach: so they are tuned with all steps.
NEIGHBOURS = {
    "far look-up": {
        "data": {"vocab": 10, "sentences": 32},
        "model": {"d_model": 64, "head": 2, "layer": 2, "max_length": 256},
        "settings": {
            "steps": 400, "batch": 6, "warmup": 20, "learning_rate": 2.5e-3, "beta2": 0.99, "evaluate_every": 40,
            "precision": "float32",
        },
        "variants": in_a_race(256),
    },
    "language model": {
        "data": {"tokens": "characters", "corpus": "tinyshakespeare", "windows": 128, "curve_windows": 32},
        "model": {"d_model": 64, "head": 2, "layer": 2, "max_length": 128},
        "settings": {
            "steps": 2000, "batch": 6, "warmup": 100, "learning_rate": 3e-3, "beta2": 0.99, "evaluate_every": 200,
            "precision": "float32",
        },
        "variants": in_a_race(128),
    },
}  # fmt: skip
NEIGHBOURS_GRID = ((1, 2), ())  # rates, and no factors but the default


# --- The suites ---


@dataclass(frozen=True)
class Suite:
    """description: one sentence for --help. tasks: their settings. runs: the most important first.

    stages: functions of the recorded runs that give more runs; each is asked when all runs before are done.
    """

    description: str
    tasks: dict
    runs: list
    stages: tuple = ()


def suite(name):
    """The Suite of that name. Raises ValueError if there is none."""
    if name not in SUITES:
        raise ValueError(f"suite must be one of {', '.join(SUITES)}, not {name!r}")
    return SUITES[name]()


def tiny():
    runs = [experiment("language model", variant, seed) for seed in range(2) for variant in VARIANTS]
    return Suite("a few seconds: tries the machinery, its numbers say nothing", TINY, runs)


def live():
    settings = LIVE_RATES | {"steps": LIVE_STEPS, "warmup": LIVE_STEPS // 20}
    some = ("Vanilla", "Factorized Random")
    runs = [experiment("language model", variant, 1, "live", settings=settings) for variant in some]
    description = "two variants of nanogpt, a third of its steps, as in chapter 13: a minute or two on two cores"
    return Suite(description, NANOGPT, runs)


def nanogpt():
    description = "nanoGPT's CPU setting on tiny Shakespeare, equally tuned, beside n-grams: hours on one core"
    return _shakespeare(description, NANOGPT)


def longer():
    """Two stages in one list: the rates beyond the grid with the steps of nanogpt, then the final runs."""

    def runs(question, seeds, rates, steps):
        steps = {"steps": steps, "warmup": steps // 20}
        return [
            experiment(
                "language model", variant, seed, question,
                settings={"learning_rate": rate, "r_learning_rate_factor": factor} | steps,
            )
            for seed in seeds
            for variant, rate, factor in rates
        ]  # fmt: skip

    beyond = [(variant, rate, 10.0) for variant, some in BEYOND.items() for rate in some]
    final = [(variant, rate, factor) for variant, (rate, factor) in LONGER_RATES.items()]
    description = f"nanogpt with {LONGER_STEPS:,} steps, Vanilla, Dense and Random at the rates that its whole runs "
    description += "chose: 2 hours on one core"
    every = runs("choice", [1], beyond, 2000) + runs("final", [2, 3, 4], final, LONGER_STEPS)
    return Suite(description, NANOGPT, every)


def why():
    """The ranks first, then the heads, then the starts: each of the three is tuned and done before the next."""
    [(task, settings)] = WHY.items()
    groups = {}
    for variant, made in settings["variants"].items():
        groups.setdefault(next(name for name in ("rank", "head", "start") if name in made), {})[variant] = made["score"]
    stages = []
    for scores in groups.values():
        *its_stages, _ = tuned_stages(task, settings, scores, dict.fromkeys(scores, 3))
        stages += its_stages
    description = "nanogpt with other ranks, heads and starts of R, each equally tuned: three hours on one core"
    return Suite(description, WHY, [], tuple(stages))


def gpu():
    description = "nanoGPT's setting for a GPU on tiny Shakespeare, equally tuned, beside n-grams: hours on a card"
    return _shakespeare(description, GPU)


def grammar():
    task = "translation, grammar"
    groups = [MAIN, [variant for variant in [*VARIANTS, WIDER] if variant not in MAIN]]
    description = "the grammar, 4,200 steps, equally tuned, beside copying: 5 hours on one core; "
    description += "three seeds of Vanilla, Dense and Random come first"
    return Suite(description, GRAMMAR, [experiment(task, COPY, question="baseline")], _in_groups(GRAMMAR, groups))


def tatoeba():
    task = "translation, tatoeba"
    some = ("Factorized Random", "Random + Vanilla")
    groups = [MAIN, some, [variant for variant in VARIANTS if variant not in (*MAIN, *some)]]
    stages = list(_in_groups(TATOEBA, groups))

    def cross(recorded):
        """Random with a random S of the cross-attention too, else as the final runs of Random: not tuned again.

        It comes as soon as five variants have three seeds, the least that the comparison asks for.
        """
        finals = [run for run in stages[2](recorded) if run["variant"] == "Random" and run["seed"] <= 3]
        return [run | {"question": "cross-attention", "model": {"cross_score": "random"}} for run in finals]

    stages.insert(6, cross)
    description = "everyday sentences into German, equally tuned, beside copying, and synthesized cross-attention: 9 "
    description += "hours on one core; three seeds of Vanilla, Dense and Random come first"
    baseline = [experiment(task, COPY, question="baseline")]
    return Suite(description, TATOEBA, baseline, tuple(stages))


def dialogue():
    description = "the next turn of dialogues with personas, equally tuned, beside copying: 6 hours on one core; "
    description += "three seeds of Vanilla, Dense and Random come first"
    stages = _in_groups(DIALOGUE, [MAIN, ("Random + Vanilla", "Dense + Vanilla")])
    baselines = [experiment("dialogue", name, question="baseline") for name in (COPY, ONE_REPLY, WORDS)]
    return Suite(description, DIALOGUE, baselines, stages)


def neighbours():
    """The far look-up first, tuned and done; then the characters."""
    baselines = {
        "far look-up": ("guess", "counting"),
        "language model": [f"{order}-gram" for order in range(1, 7)],
    }
    stages = []
    for task, share in (("far look-up", 1), ("language model", 3)):
        settings = NEIGHBOURS[task]
        scores = {variant: made["score"] for variant, made in settings["variants"].items()}
        seeds = dict.fromkeys(scores, 3)
        *its_stages, _ = tuned_stages(task, settings, scores, seeds, grid=NEIGHBOURS_GRID, share=share)
        stages += its_stages
    description = "chapter 10's race of patterns, far look-ups and characters, equally tuned: two hours on one core"
    runs = [experiment(task, name, question="baseline") for task, names in baselines.items() for name in names]
    return Suite(description, NEIGHBOURS, runs, tuple(stages))


SUITES = {
    "tiny": tiny, "live": live, "nanogpt": nanogpt, "longer": longer, "grammar": grammar, "tatoeba": tatoeba,
    "dialogue": dialogue, "why": why, "neighbours": neighbours, "gpu": gpu,
}  # fmt: skip


def experiment(task, variant, seed=0, question="order", model=None, settings=None):
    return {
        "question": question, "task": task, "variant": variant, "seed": seed,
        "model": model or {}, "settings": settings or {},
    }  # fmt: skip


def _shakespeare(description, tasks):
    """The suite of one language model: counting, then all variants tuned; MAIN with five seeds, else three."""
    [(task, settings)] = tasks.items()
    seeds = {variant: 5 if variant in MAIN else 3 for variant in VARIANTS}
    names = [*(f"{order}-gram" for order in range(1, 7)), TUNED]
    baselines = [experiment(task, name, question="baseline") for name in names]
    return Suite(description, tasks, baselines, tuned_stages(task, settings, VARIANTS, seeds))


def _in_groups(tasks, groups):
    """The stages of a tuned suite of one task: each group of variants is tuned and done before the next begins.

    So a stop leaves whole comparisons. MAIN is the first group: it has five seeds, the others three, and its last two
    come after the second group. Of MAIN alone the rates that were not chosen are tried with all steps, after
    everything else.
    """
    [(task, settings)] = tasks.items()
    stages, last = [], None

    def seeds_of(final, wanted):
        return lambda recorded: [run for run in final(recorded) if wanted(run["seed"])]

    for number, group in enumerate(groups):
        scores = {variant: VARIANTS.get(variant, "dot_product") for variant in group}
        seeds = dict.fromkeys(group, 5 if group == MAIN else 3)
        *sweeps, final, choice = tuned_stages(task, settings, scores, seeds)
        stages += [*sweeps, seeds_of(final, lambda seed: seed <= 3)]
        if number == 0:
            last, rest = choice, seeds_of(final, lambda seed: seed > 3)
        elif number == 1:
            stages.append(rest)
    return (*stages, last)


def settings_of(run, task_settings):
    """What a run is trained with: (arguments of the model, Settings). task_settings: its entry in Suite.tasks.

    Where the task has "variants" of its own, "pattern" or "start" may be among the arguments: what
    `neighbours.set_patterns` and `starts.hand_made` get.
    """
    made = task_settings.get("variants", {}).get(run["variant"])
    sizes = task_settings["model"] | (made or {"score": VARIANTS.get(run["variant"], "dot_product")})
    if run["variant"] == WIDER:
        sizes["d_model"] = task_settings["wider"]
    settings = task_settings["settings"] | run["settings"] | {"seed": run["seed"]}
    return sizes | run["model"], Settings(**settings)


def title(run):
    """The name of a run, unique in its suite: "language model, Random, head 8, seed 0"."""
    changes = [f"{name} {value}" for name, value in (run["model"] | run["settings"]).items()]
    return ", ".join([run["task"], run["variant"], *changes, f"seed {run['seed']}"])
