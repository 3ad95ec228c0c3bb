"""Which mistakes does each exercise know, and what does its check say to somebody who makes them?

    python tools/bank_table.py                 all exercises, one JSON line a mistake
    python tools/bank_table.py 02.1 06 --seed 7

Two versions of the bank know the same mistakes where their sorted tables are the same: compare them with `diff`.
"""

import argparse
import importlib
import json
import pkgutil

from synth_lib import checks
from synth_lib.checks import bank


def rows(wanted, seed):
    for module in sorted(pkgutil.iter_modules(bank.__path__), key=lambda module: module.name):
        for exercise in importlib.import_module(f"{bank.__name__}.{module.name}").EXERCISES:
            if not wanted or any(exercise.key.startswith(key) for key in wanted):
                for mistake in exercise.wrong:
                    verdict = checks.check(exercise.key, mistake.answer, seed=seed)
                    yield {
                        "exercise": exercise.key,
                        "diagnosis": mistake.diagnosis,
                        "section": mistake.section,
                        "status": verdict.status,
                        "message": verdict.message,
                    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", help="exercises or chapters, such as 02.1 or 06; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs that the mistakes are judged on")
    options = parser.parse_args()
    for row in rows(options.keys, options.seed):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
