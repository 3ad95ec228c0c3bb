"""Which mistakes does each exercise know, and what does its check say to somebody who makes them?

    python tools/bank_table.py                 one JSON line for each mistake of every exercise
    python tools/bank_table.py 02.1 06 --seed 7

A mistake of a result with several parts has a line for each choice of the parts that it spoils. Whether two versions
of the bank know the same mistakes is seen by `diff` of their sorted tables.
"""

import argparse
import importlib
import itertools
import json
import pkgutil

from synth_lib.checks import bank, check
from synth_lib.checks.compare import difference
from synth_lib.checks.exercise import Draw


def answers_with(exercise, mistake, seed=0):
    """The wrong answers that this mistake stands for: (names of the parts that it spoils, answer). () is: the whole."""
    if not mistake.by_part:
        return [((), mistake.answer)]
    right, names = exercise.right[0], exercise.returns.split(", ")

    def with_parts(spoiled):
        def answer(**arguments):
            pairs = zip(names, right(**arguments), mistake.answer(**arguments), strict=True)
            return tuple(wrong if name in spoiled else value for name, value, wrong in pairs)

        return answer

    trials = [exercise.inputs(Draw(seed + trial)) for trial in range(exercise.trials)]
    pairs = [(right(**arguments), mistake.answer(**arguments)) for arguments in trials]
    wrong = [name for i, name in enumerate(names) if any(difference(one[i], other[i]) for one, other in pairs)]
    choices = [choice for n in range(1, len(wrong) + 1) for choice in itertools.combinations(wrong, n)]
    return [(choice, with_parts(choice)) for choice in choices]


def rows(wanted, seed):
    for module in sorted(pkgutil.iter_modules(bank.__path__), key=lambda module: module.name):
        for exercise in importlib.import_module(f"{bank.__name__}.{module.name}").EXERCISES:
            if wanted and not exercise.key.startswith(tuple(wanted)):
                continue
            for mistake in exercise.wrong:
                for parts, answer in answers_with(exercise, mistake, seed):
                    verdict = check(exercise.key, answer, seed=seed, seconds=600)  # also on a busy machine
                    yield {
                        "exercise": exercise.key,
                        "diagnosis": mistake.diagnosis,
                        "section": mistake.section,
                        "parts": parts,
                        "status": verdict.status,
                        "message": verdict.message,
                    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", help="exercises or chapters, such as 02.1 or 06; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs that the mistakes are judged on")
    options = parser.parse_args()
    for row in rows(options.keys, options.seed):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
