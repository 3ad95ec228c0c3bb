"""The command `python -m synth_lib.lab.bench`: its options, the order of the suites, the tables at the end."""

import argparse
import math
import os
import sys
from functools import partial
from pathlib import Path

import torch

from synth_lib.lab import measure
from synth_lib.lab.bench import (
    SHARES,
    TINY,
    Bench,
    attention,
    compile_ahead,
    compile_jobs,
    decode,
    exit_status,
    side_by_side,
    train,
)
from synth_lib.lab.bench.comparison import check
from synth_lib.lab.bench.forms import all_scores


def main():
    parser = argparse.ArgumentParser(
        prog="python -m synth_lib.lab.bench", description="Check and time the fast form of each S."
    )
    parser.add_argument("--suite", choices=[*SHARES, "compile", "all"], default="attention", help="what to do")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--minutes", type=minutes, default=5, help="start nothing new after so long")
    parser.add_argument("--out", help="the JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: does it run? The numbers mean nothing")
    parser.add_argument("--rounds", type=rounds, help="measured rounds, of which the median is shown")
    parser.add_argument("--only", action="append", help="check: one S, may be repeated; compile: form,size")
    arguments = parser.parse_args()
    try:
        sizes = TINY if arguments.tiny else None
        bench = Bench(arguments.device, arguments.minutes, arguments.out, sizes, arguments.rounds)
        refuse_wrong_names(bench, arguments.suite, arguments.only)
        if arguments.out and Path(arguments.out).is_file():
            raise ValueError(f"--out is {arguments.out}, which holds a record already: name a new file.")
        bench.save()  # a file that cannot be written is found now, not after the minutes
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--out is {arguments.out}, which cannot be written: {error.strerror}.")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # many compilers in the background would be timed too
    torch.manual_seed(0)
    interrupted = False
    try:
        run(bench, list(SHARES) if arguments.suite == "all" else [arguments.suite], arguments.only)
    except KeyboardInterrupt:
        interrupted = True
        bench.record["skipped"].append("what comes after Ctrl-C")
        bench.save()
    print_table(bench.record)
    sys.exit(130 if interrupted else exit_status(bench.record))


def minutes(text):
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of minutes above 0.")
    return number


def rounds(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1 round.")
    return number


def refuse_wrong_names(bench, suite, only):
    """A ValueError if --only names what this suite does not know, or is missing."""
    if suite == "compile":
        known = [job[-1] for job in compile_jobs(bench)]
        if not known:
            raise ValueError(f"--suite compile has nothing to compile on the device {bench.device}.")
        if not only:
            raise ValueError(f"--suite compile needs --only with one of: {'; '.join(known)}.")
    elif suite in ("check", "all"):
        known = all_scores()
    elif only:
        raise ValueError(f"--only is for the suites check and compile, not for {suite}.")
    for name in only or []:
        if name not in known:
            raise ValueError(f"--only is {name}, but --suite {suite} knows: {'; '.join(known)}.")


def run(bench, suites, only=None):
    """The suites one after the other, each with its share of the minutes; only: what is checked, or compiled."""
    if suites == ["compile"]:
        for which in only:
            compile_ahead(bench, which)
        bench.save()
        return
    if suites != ["check"]:
        bench.record["machine"] = measure.machine(bench.device, bench.dtype)
    ahead = bench.cuda and suites[0] == "check" and "attention" in suites  # while the check leaves the GPU half idle
    for number, suite in enumerate(suites):
        bench.start(suites[number:])
        if suite == "check" and bench.cuda and not only:
            jobs = [["--suite", "check", "--only", score] for score in all_scores()]
            side_by_side(bench, jobs + (compile_jobs(bench) if ahead else []), bench.seconds_left())
        elif suite == "check":
            check(bench, only)
        elif suite == "attention":
            attention(bench, compiled_ahead=ahead)
        else:
            bench.attempt(suite, partial({"train": train, "decode": decode}[suite], bench))
        bench.save()


def print_table(record):
    """What was measured, the important last. A ratio is of times, > 1 is faster, but that of the peaks.

    "/ sdpa" is of one run. "/ plain" and "/ plainest" are of the `ms` of two rows, on CUDA maybe of two runs.
    """
    print(f"{record['card']}, torch {record['versions']['torch']}, {record['dtype']}, {record['date']}")
    if "machine" in record:
        copy, product = record["machine"].values()
        print(f"copy {copy / 1e9:.0f} GB/s, matrix product {product / 1e12:.2f} TFLOP/s")
    for suite in ("layer", "core"):
        print_attention(suite, record.get(suite, []))
    line = "{:34} {:>12} {:>9} {:>17} {:>14} {:>12} {:>9}".format
    for suite, memory, against in (("train", "peak_bytes", "sdpa"), ("decode", "cache_bytes", "dot_product")):
        rows = record.get(suite, [])
        if rows:
            print(line(suite, "tokens/s", "ms", "quartiles", f"/ {against}", memory.replace("_", " "), "launches"))
        for row in rows:
            spread = f"{row['low']:.1f}-{row['high']:.1f}"
            ratio, launches = row.get(f"faster_than_{against}", ""), row.get("launches", "")
            numbers = row["tokens_per_second"], f"{row['ms']:.1f}", spread, ratio, row[memory], launches
            print(line(row["score"], *numbers))
    if "check" in record:
        counted = record["check"]
        print(f"check: {counted['cases']} cases, {counted['wrong']} wrong, {counted['failed']} failed")
    for kind in ("failed", "skipped"):
        some = record[kind]
        if some:
            print(f"{kind}: {len(some)}")
        for entry in some[:20]:
            print(f"  {entry if isinstance(entry, str) else entry['what'] + ': ' + entry['error'][:150]}")


def print_attention(suite, rows):
    line = "{:34} {:>6} {:>6} {:>9} {:>17} {:>7} {:>7} {:>10} {:>8} {:>9} {:>7}".format
    if rows:
        against = "/ sdpa", "/ plain", "/ plainest"
        print(line(suite, "length", "causal", "ms", "quartiles", *against, "launches", "peak MiB", "/ sdpa"))
    found = {(row["form"], row["length"], row["causal"]): row for row in rows}
    for row in rows:
        score, way = (row["form"].replace("sdpa", "dot_product") + ", ").split(", ")[:2]
        ratios = []
        for other in ("plain", "plainest"):
            slower = found.get((f"{score}, {other}", row["length"], row["causal"]))
            ratios.append(f"{slower['ms'] / row['ms']:.2f}" if slower and way in ("", "plain") and way != other else "")
        print(
            line(
                row["form"],
                row["length"],
                "yes" if row["causal"] else "",
                f"{row['ms']:.3f}",
                f"{row['low']:.3f}-{row['high']:.3f}",
                row.get("faster_than_sdpa", ""),
                *ratios,
                row.get("launches", ""),
                f"{row['peak_bytes'] / 2**20:.1f}",
                row.get("peak_to_sdpa", ""),
            )
        )


if __name__ == "__main__":
    main()
