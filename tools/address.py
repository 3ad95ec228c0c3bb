"""Write into README.md where the course is read and run without installing anything: its site, and Colab.

    python tools/address.py       # from the public address in pyproject.toml; `make notebooks` calls it
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_notebooks import colab_address, pages_address, settings, write_whole  # noqa: E402

README = ROOT / "README.md"
BEGIN, END = "<!-- address -->\n", "<!-- /address -->\n"
FIRST = "notebooks/00_start_here.ipynb"


def ways(repository, ref):
    """The two lines, in Markdown; without a public address they say so, and what to do instead."""
    site, colab = pages_address(repository), colab_address(repository, ref, FIRST)
    online = "there is no public site yet; `make book` writes it, with every output, into `build/site`."
    in_colab = "upload a chapter's `.ipynb`; [docs/start.md](docs/start.md#colab) has the one line that it may ask for."
    if site:
        online = f"[the site]({site}) has every chapter with every output, and [the page above]({site}live.html)."
    if colab:
        in_colab = f"[chapter 00]({colab}); the other chapters have a link at their top."
    return f"- **Read it online:** {online}\n- **Open it in Colab:** {in_colab}\n"


def parts(text):
    """What stands before, between and after the two marks."""
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md must hold the line {BEGIN.strip()} and, below it, {END.strip()}.")
    return before + begin, inside, end + after


def main():
    before, _, after = parts(README.read_text(encoding="utf8"))
    write_whole(README, before + ways(**settings()) + after)


if __name__ == "__main__":
    main()
