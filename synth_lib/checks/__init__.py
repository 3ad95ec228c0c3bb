"""What an exercise calls: `check("02.1", dense_scores)` for a verdict, `progress()` for what is left.

exercise    what an exercise is made of: inputs, right answers, known mistakes
bank        the exercises, one file a chapter
engine      finds the verdict
runner      runs an answer once, and says what came of it
compare     whether two results are the same
guard       a time limit for an answer, and nothing of it left behind
guess       a prediction beside what came out
"""

from synth_lib.checks.engine import Progress, Verdict, check, find, progress
from synth_lib.checks.guess import compare_guess

__all__ = ["Progress", "Verdict", "check", "compare_guess", "find", "progress"]
