"""The tables that the command prints of a record."""

from synth_lib.lab.bench import neighbours


def print_tables(record):
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
            spread = quartiles(row, 1)
            ratio, launches = row.get(f"faster_than_{against}", ""), row.get("launches", "")
            numbers = row["tokens_per_second"], f"{row['ms']:.1f}", spread, ratio, row[memory], launches
            print(line(row["score"], *numbers))
    if "neighbours" in record:
        neighbours.print_table(record["neighbours"])
    if "check" in record:
        counted = record["check"]
        print(f"check: {counted['cases']} cases, {counted['wrong']} wrong, {counted['failed']} failed")
    for kind in ("failed", "skipped"):
        if record[kind]:
            print(f"{kind}: {len(record[kind])}")
        for entry in record[kind][:20]:
            print(f"  {entry if isinstance(entry, str) else entry['what'] + ': ' + entry['error'][:150]}")


def print_attention(suite, rows):
    line = "{:34} {:>6} {:>6} {:>9} {:>17} {:>7} {:>7} {:>10} {:>8} {:>9} {:>7}".format
    if rows:
        against = "/ sdpa", "/ plain", "/ plainest"
        print(line(suite, "length", "causal", "ms", "quartiles", *against, "launches", "peak MiB", "/ sdpa"))
    row_of = {(row["form"], row["length"], row["causal"]): row for row in rows}
    for row in rows:
        score, way = (row["form"].replace("sdpa", "dot_product") + ", ").split(", ")[:2]
        ratios = []
        for other in ("plain", "plainest"):
            slower = row_of.get((f"{score}, {other}", row["length"], row["causal"]))
            ratios.append(f"{slower['ms'] / row['ms']:.2f}" if slower and way in ("", "plain") and way != other else "")
        times = f"{row['ms']:.3f}", quartiles(row, 3), row.get("faster_than_sdpa", "")
        memory = row.get("launches", ""), f"{row['peak_bytes'] / 2**20:.1f}", row.get("peak_to_sdpa", "")
        print(line(row["form"], row["length"], "yes" if row["causal"] else "", *times, *ratios, *memory))


def quartiles(row, digits):
    """As text; one round has none."""
    return "one round" if row["low"] is None else f"{row['low']:.{digits}f}-{row['high']:.{digits}f}"
