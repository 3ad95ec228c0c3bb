"""What an exercise calls: `check("02.1", dense_scores)` for a verdict, `progress()` for what is left.

exercise    what an exercise is made of: inputs, right answers, known mistakes
bank        the exercises, one file a chapter
engine      finds the verdict
runner      runs an answer once, and says what came of it
show        how a notebook shows it
compare     whether two results are the same
guard       a time limit for an answer, and nothing of it left behind
guess       a prediction beside what came out
audit       asks anybody's layer whether it computes what it claims
boxes       layers of which some do not, for chapter 09
"""

from synth_lib.checks.audit import Claim, audit
from synth_lib.checks.engine import Progress, Verdict, check, find, progress
from synth_lib.checks.guess import compare_guess

__all__ = ["Claim", "Progress", "Verdict", "audit", "check", "compare_guess", "find", "progress"]
