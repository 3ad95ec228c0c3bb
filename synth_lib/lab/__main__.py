"""The command line of the lab: `python -m synth_lib.lab train | suite | probes | bench | card`.

The exit status is 0, 1 if a run failed or a check found something wrong, 2 if an option does not fit, 130 after Ctrl-C.
"""

import argparse
import json
import os
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import torch

from synth_lib.lab import bench, card, own
from synth_lib.lab.bench.report import print_tables
from synth_lib.lab.probes import STUDIES, run_study
from synth_lib.lab.runner import run_suite
from synth_lib.lab.suites import SUITES, suite
from synth_lib.lab.train import SIZES, Settings, choose_device, parameter_groups, train_language_model, write_whole
from synth_lib.models import LanguageModel
from synth_lib.scores import SCORES
from synth_lib.shapes import check_number, check_whole_number
from synth_lib.text import corpora

TRAIN = """Train a language model on Shakespeare. You choose how its attention scores are made (--score).
With a file of your own train on that: a language model (--text), a translator (--pairs) or a classifier (--labels).

The loss is the mean cross-entropy of the next token, in nats per token, on fixed windows of texts that the model
never trains on; for --labels that of the label, in nats per text. Of your own file, what counting reaches on the
same texts is printed beside it. Ctrl-C finishes the running step and keeps a checkpoint, the state to go on from;
--resume goes on from there."""

TRAIN_EXAMPLES = """examples:
  a small model, about a minute on a laptop, that then writes 300 characters:
    python -m synth_lib.lab train --score random --d_model 64 --layer 2 --max_length 32 --sample 300
  the standard sizes with another seed; stop it with Ctrl-C, then continue:
    python -m synth_lib.lab train --score dense --seed 1 --folder runs/dense-1
    python -m synth_lib.lab train --score dense --seed 1 --folder runs/dense-1 --resume
  a text of your own, then 300 characters that the model writes:
    python -m synth_lib.lab train --text notes.txt --max_length 64 --sample 300 --folder runs/notes
  a translator, and what it writes for the first 5 test sources:
    python -m synth_lib.lab train --pairs words.tsv --layer 2 --sample 5 --folder runs/words"""

SUITE = """Do many runs, the most important first. A record gets every run that has ended; the same command does what it
does not hold yet. Ctrl-C at any time."""

SUITE_EXAMPLES = """examples:
  all runs of a suite that are not in its record yet, two at a time, in at most 5 minutes:
    python -m synth_lib.lab suite live --out runs/live.jsonl --workers 2 --minutes 5"""

PROBES = "Train the probes of chapter 08. A record gets every run that has ended; the same command does the others."

PROBES_EXAMPLES = """examples:
  all models of a study, four at a time:
    python -m synth_lib.lab probes depth --workers 4"""

BENCH_EXAMPLES = """examples:
  every suite, in at most 6 minutes, on a GPU:
    python -m synth_lib.lab bench all --device cuda --minutes 6 --out runs/speed.json
  one score against its plain form, on a CPU:
    python -m synth_lib.lab bench check --only dense --device cpu"""

CARD_EXAMPLES = """examples:
  half an hour on a GPU, and then, with the same command, another:
    python -m synth_lib.lab card --minutes 30 --out runs/card
  does it run? A rehearsal that also a CPU can do:
    python -m synth_lib.lab card --tiny --out runs/rehearsal"""

BENCHES = (*bench.SHARES, "neighbours", "compile", "all")

# The options of `train`, {group: {name: (default, help)}}; of each, its type is that of the default.
TRAIN_OPTIONS = {
    "the model": {
        "score": (
            SIZES["score"],
            f"how the attention scores are made: {', '.join(SCORES)}; 'random + dense' mixes, 'random, dense' has one "
            "per layer",
        ),
        "d_model": (SIZES["d_model"], "features of a token"),
        "head": (SIZES["head"], "attention heads; they divide d_model"),
        "layer": (SIZES["layer"], "blocks, one on the other"),
        "max_length": (SIZES["max_length"], "how many tokens the model reads at once, in training too"),
        "dropout": (SIZES["dropout"], "probability of dropping a feature or a weight while training"),
    },
    "the training": {
        setting.name: (asdict(Settings())[setting.name], setting.metadata["description"])
        for setting in fields(Settings)
    },
    "the text and the run": {
        "corpus": ("shakespeare", "the text: shakespeare, or tinyshakespeare, the one file of many small models"),
        "tokens": ("characters", "characters or byte_pairs; --pairs and --labels always have byte_pairs"),
        "vocab": (1024, "number of tokens, at least 256 (260 for --pairs and --labels); for byte_pairs alone"),
        "windows": (64, "windows (pieces of text) of each evaluation; --pairs and --labels measure all examples"),
        "folder": ("runs/latest", "where checkpoint.pt (the state to go on from) and record.json are written"),
        "device": ("auto", "cuda, mps or cpu; auto takes the first of them that there is"),
        "sample": (0, "tokens of text to write at the end; for --pairs and --labels, test examples to show"),
    },
}
OWN = {
    "text": "a text: its first 90 %% train, the next 5 %% are the split valid, the last 5 %% test",
    "pairs": "source, tab, target in each line: a translator",
    "labels": "text, tab, label in each line: a classifier",
}
OWN_HELP = """in UTF-8; a byte order mark and the line ends of Windows do no harm, empty lines of a table are left
out. A table has no line of names, and nothing in it is quoted. A hash of its first column splits it, about 80 % train,
10 % valid, 10 % test, so that equal texts are never in two splits. Characters that are in valid or test alone are
counted in the loss like all others."""


def main(arguments=None):
    """Do what the arguments say -> the exit status."""
    parser, commands = _parsers()
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    if command is None:
        parser.print_help()
        return 2
    try:
        return {"train": _train, "suite": _suite, "probes": _probes, "bench": _bench, "card": _card}[command](options)
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except ModuleNotFoundError as problem:
        commands[command].error(f"{problem}, which this needs: pip install -e '.[notebooks]' brings it")
    except (corpora.CorpusError, OSError, TypeError, ValueError) as problem:
        commands[command].error(str(problem))


def _parsers():
    """The parser of the whole command line, and {command: its own}. Options that were left out are in no result."""
    parser = argparse.ArgumentParser("python -m synth_lib.lab", description="Train models, many runs, probes; time S.")
    below = parser.add_subparsers(dest="command", metavar="train | suite | probes | bench | card")
    commands = {}

    def add_command(name, summary, description, examples):
        commands[name] = below.add_parser(
            name, help=summary, description=description, epilog=examples, allow_abbrev=False,
            usage=f"%(prog)s {'[options]' if name in ('train', 'card') else 'name [options]'}",
            formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS,
        )  # fmt: skip
        return commands[name]

    train = add_command("train", "one model, also on a file of your own", TRAIN, TRAIN_EXAMPLES)
    for group_name, options in TRAIN_OPTIONS.items():
        group = train.add_argument_group(group_name)
        for name, (default, description) in options.items():
            kind = type(default)
            if name != "warmup":  # its default follows from the steps
                description += f" (default: {default})"
            group.add_argument(f"--{name}", type=kind, metavar=kind.__name__, help=description)
    group.add_argument("--no_bias", action="store_true", help="linear layers, norms and S without biases")
    group.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")
    group = train.add_argument_group("a file of your own", OWN_HELP)
    for name, description in OWN.items():
        group.add_argument(f"--{name}", metavar="file", help=description)

    suites = add_command("suite", "many runs of several tasks", SUITE, SUITE_EXAMPLES)
    suites.add_argument("name", help="; ".join(f"{name}: {suite(name).description}" for name in SUITES))
    suites.add_argument("--device", metavar="str", help="cuda, mps or cpu (default: auto, the first that there is)")

    probes = add_command("probes", "the small tasks of chapter 08", PROBES, PROBES_EXAMPLES)
    probes.add_argument("name", help=f"which list of trainings: {', '.join(STUDIES)}")
    probes.add_argument("--seeds", type=int, metavar="int", help="models of each kind (default: 3)")

    for many in (suites, probes):
        many.add_argument("--out", type=Path, metavar="file", help="the record, JSON Lines (default: runs/NAME.jsonl)")
        many.add_argument("--minutes", type=float, metavar="float", help="start no run that would end later")
        many.add_argument("--workers", type=int, metavar="int", help="runs side by side, one thread each (default: 1)")

    speed = add_command("bench", "check and time the fast form of each S", bench.__doc__, BENCH_EXAMPLES)
    speed.add_argument("name", help=f"what to do: {', '.join(BENCHES)}")
    speed.add_argument("--device", metavar="str", help="cpu or cuda (default: cuda, if there is one)")
    speed.add_argument("--minutes", type=float, metavar="float", help="start nothing new after so long (default: 5)")
    speed.add_argument("--out", type=Path, metavar="file", help="the JSON file to write (default: none)")
    speed.add_argument("--tiny", action="store_true", help="tiny sizes: does it run? The numbers mean nothing")
    speed.add_argument("--rounds", type=int, metavar="int", help="measured rounds, of which the median is shown")
    speed.add_argument("--only", action="append", metavar="name", help="check: one S; compile: form,size; repeatable")

    ask = add_command("card", "all that a GPU should be asked", card.__doc__, CARD_EXAMPLES)
    ask.add_argument("--minutes", type=float, metavar="float", help="start nothing new after so long (default: 30)")
    ask.add_argument("--out", type=Path, metavar="folder", help="where all is kept (default: runs/card)")
    ask.add_argument("--device", metavar="str", help="cpu or cuda (default: cuda; without a GPU you have to say cpu)")
    ask.add_argument("--workers", type=int, metavar="int", help="runs side by side (default: one a core, at most 14)")
    ask.add_argument("--tiny", action="store_true", help="tiny sizes: does it run? The numbers mean nothing")
    return parser, commands


def _train(chosen):
    defaults = {name: default for options in TRAIN_OPTIONS.values() for name, (default, _) in options.items()}
    options = defaults | {"no_bias": False, "resume": False, "quiet": False} | chosen
    kind = _own_kind(chosen)
    if kind in (None, "text") and options["tokens"] == "characters" and "vocab" in chosen:
        raise ValueError("--vocab is for --tokens byte_pairs alone: the characters are those of the text")
    names = {setting.name for setting in fields(Settings)}
    settings = Settings(**{name: value for name, value in chosen.items() if name in names})
    sizes = {name: options[name] for name in SIZES} | ({"bias": False} if options["no_bias"] else {})
    if "," in sizes["score"]:
        sizes["score"] = [name.strip() for name in sizes["score"].split(",")]
    with torch.device("meta"):
        rates = {group["lr"] for group in parameter_groups(LanguageModel(2, **sizes), 1.0, 0.0, 2.0)}
    for name in ("r_learning_rate_factor", "r_weight_decay"):
        if name in chosen and 2.0 not in rates:
            raise ValueError(f"--{name} is for scores with a learned table, which {options['score']} has not")
    folder = Path(options["folder"])
    if options["sample"]:
        check_whole_number("sample", options["sample"])
    run = {
        "device": options["device"], "folder": folder, "resume": options["resume"], "progress": not options["quiet"],
    }  # fmt: skip
    if kind:
        task = _own_task(kind, options)
        if options["sample"]:
            task.check_sample(options["sample"])
        counted = task.counted()
        print(*task.lines, sep="\n", flush=True)
        start_training = partial(task.train, sizes, settings, **run)
    else:
        tokenizer, splits = corpora.shakespeare(options["tokens"], options["vocab"], options["corpus"])
        text = {"text": options["corpus"], "windows": options["windows"]}
        start_training = partial(train_language_model, sizes, settings, tokenizer, splits, **text, **run)
    try:
        model, record = start_training()
    except KeyboardInterrupt as stop:
        resume = f"; --resume goes on from {folder}" if (folder / "checkpoint.pt").exists() else ""
        print(f"{str(stop) or 'stopped at once'}{resume}")
        return 130
    except FloatingPointError as problem:
        print(f"failed: {problem}")
        return 1
    print(f"{record['final_loss']:.3f} {record['unit']} at step {settings.steps}, {folder / 'record.json'}")
    if kind:
        record["results"] = {"the model": own.measured(task, model, settings.precision)} | counted
        write_whole(folder / "record.json", lambda file: file.write(json.dumps(record, indent=1).encode()))
        own.print_table(record["results"])
    if options["sample"]:
        if kind:
            print(task.sample(model, options["sample"], settings.seed))
        else:
            print(own.write_text(model, tokenizer, "\n", options["sample"], settings.seed))
    return 0


def _own_kind(chosen):
    """Which file of one's own is chosen: "text", "pairs", "labels" or None. An option that does not fit is refused."""
    kinds = [kind for kind in OWN if kind in chosen]
    if len(kinds) > 1:
        raise ValueError(f"--{' and --'.join(kinds)} are different tasks: give one of them")
    kind = kinds[0] if kinds else None
    unused = {None: (), "text": ("corpus",)}.get(kind, ("corpus", "tokens", "windows"))
    for option in unused:
        if option in chosen:
            raise ValueError(f"--{option} is not for --{kind}: it would change nothing")
    return kind


def _own_task(kind, options):
    path, vocab, length = options[kind], options["vocab"], options["max_length"]
    device = choose_device(options["device"])
    if kind == "text":
        return own.OwnText(path, options["tokens"], vocab, length, options["windows"])
    return {"pairs": own.OwnPairs, "labels": own.OwnLabels}[kind](path, vocab, length, device)


def _checked(options, names, kind):
    """The options of `suite` and `probes`, with their defaults."""
    name = options.pop("name")
    if name not in names:
        raise ValueError(f"{kind} must be one of {', '.join(names)}, not {name!r}")
    for option in ("workers", "seeds"):
        check_whole_number(option, options.get(option, 1))
    if "minutes" in options:
        check_number("minutes", options["minutes"])
    return name, options.pop("out", Path(f"runs/{name}.jsonl")), options


def _suite(options):
    name, out, options = _checked(options, SUITES, "suite")
    try:
        record = run_suite(name, out, **options)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {out}")
        return 130
    failed = sum(run["status"] == "failed" for run in record["runs"])
    errors, missing = record["errors"], record["missing"]
    print(f"{len(record['runs'])} runs in {out}, {failed} of them failed; {len(errors)} errors, {len(missing)} missing")
    return 1 if errors or failed else 0


def _probes(options):
    name, out, options = _checked(options, STUDIES, "study")
    try:
        _, errors = run_study(name, range(options.pop("seeds", 3)), out, **options)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {out}")
        return 130
    return 1 if errors else 0


def _bench(options):
    name, only, out = options["name"], options.get("only"), options.get("out")
    if name not in BENCHES:
        raise ValueError(f"the suite must be one of {', '.join(BENCHES)}, not {name!r}")
    unused = {"check": ("rounds", "tiny"), "decode": ("rounds",), "compile": ("rounds",)}.get(name, ())
    for option in unused:
        if option in options:
            raise ValueError(f"--{option} is not for {name}: it would change nothing")
    check_whole_number("rounds", options.get("rounds", 1))
    minutes = _checked_minutes(options, 5)
    device = options.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    run = bench.Bench(device, minutes, out, bench.TINY if "tiny" in options else None, options.get("rounds"))
    bench.refuse_wrong_names(run, name, only)
    if out and out.is_file():
        raise ValueError(f"--out is {out}, which holds a record already: name a new file")
    try:
        run.save()  # a file that cannot be written is found now, not after the minutes
    except OSError as error:
        raise ValueError(f"--out is {out}, which cannot be written: {error.strerror}") from None
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # many compilers in the background would be timed too
    torch.manual_seed(0)
    interrupted = False
    try:
        bench.run_suites(run, list(bench.SHARES) if name == "all" else [name], only)
    except KeyboardInterrupt:
        interrupted = True
        run.record["skipped"].append("what comes after Ctrl-C")
        run.save()
    print_tables(run.record)
    return 130 if interrupted else bench.exit_status(run.record)


def _checked_minutes(options, default):
    minutes = options.get("minutes", default)
    check_number("minutes", minutes)
    if minutes == 0:
        raise ValueError("minutes is 0, but must be above 0")
    return minutes


def _card(options):
    minutes, tiny, folder = _checked_minutes(options, 30), "tiny" in options, options.get("out", Path("runs/card"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = options.get("workers", min(14, cores))
    check_whole_number("workers", workers)
    device = options.get("device", "cuda")
    if "device" not in options and not torch.cuda.is_available():
        if not tiny:
            raise ValueError("torch finds no GPU here: ask the CPU with --device cpu, or rehearse with --tiny")
        print("torch finds no GPU here: a rehearsal on the CPU")
        device = "cpu"
    bench.check_device(device)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out is {folder}, which is no folder")
    return card.run_card(folder, minutes, device, workers=workers, tiny=tiny)


if __name__ == "__main__":
    raise SystemExit(main())
