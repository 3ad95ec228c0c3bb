"""A reader's predictions: written down before, laid beside what came out."""


def compare_guess(guess, outcome):
    """Print a table: for each name of `outcome` what the reader wrote in `guess`, and what came out.

    guess: {name: any value; None is not written yet}. A lesson never stops here: a name that is missing in the guess
    counts as not written, and a name that it has too many is said.
    """
    guess = guess if isinstance(guess, dict) else {}
    rows = [(name, _text(guess.get(name)), _text(value)) for name, value in outcome.items()]
    width = max(len(str(name)) for name in outcome)
    second = max(len("you said"), *(len(said) for _, said, _ in rows))
    print(f"{'':{width}}  {'you said':{second}}  came out")
    for name, said, came in rows:
        print(f"{name:{width}}  {said:{second}}  {came}")
    if unknown := [str(name) for name in guess if name not in outcome]:
        print(f"not asked for: {', '.join(unknown)}")


def _text(value):
    if value is None:
        return "-"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
