"""Install what the repository needs, and say in a few lines how far it is; pip says nothing, or hundreds of lines.

    python tools/install.py constraints.txt       # make calls it, with the Python of .venv
"""

import collections
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGE = 20  # MB: smaller files are not named
RETRY = "after connection broken by"  # in pip's warning that it tries an address again
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


class Progress:
    """What a reader is told of pip's lines: large downloads with their sizes, then that the files are unpacked, and
    once that an address does not answer, which pip tries for minutes.

    In a terminal one more line, written over and over, counts the megabytes.
    """

    def __init__(self, say, terminal):
        self.say, self.terminal = say, terminal
        self.start, self.packages, self.file, self.open = time.monotonic(), 0, "", False
        self.retries = False

    def line(self, text):
        word, _, rest = text.strip().partition(" ")
        if RETRY in text:
            if not self.retries:
                host = re.search(r"host='([^']+)'", text)
                host = host[1] if host else "the index"
                self.whole(f"  {host} does not answer; pip tries again, which may take some minutes")
            self.retries = True
        elif word == "Progress":  # of pip's bar "raw": Progress 1048576 of 526605292
            done, whole = (int(number) / 1e6 for number in rest.split(" of "))
            if whole >= LARGE:
                self.over(f"  {self.file}: {done:.0f} of {whole:.0f} MB")
        elif word in ("Downloading", "Using") and " (" in rest:  # "Using cached torch-2.13.0-....whl (526.6 MB)"
            name, _, size = rest.removeprefix("cached ").rstrip(")").rpartition(" (")
            self.file = "-".join(Path(name).name.split("-")[:2])
            number, _, unit = size.partition(" ")
            if unit == "GB" or unit == "MB" and float(number) >= LARGE:
                self.whole(f"  {self.file}, {size}{', from the cache' if word == 'Using' else ''}")
        elif word == "Collecting":
            self.packages += 1
            self.over(f"  {self.packages} packages looked up")
        elif text.startswith("Installing collected packages: "):
            self.whole(f"  unpacking {rest.count(',') + 1} packages; this takes a minute or two")

    def over(self, text):
        if self.terminal:
            seconds = int(time.monotonic() - self.start)
            self.say(f"\r{text}, {seconds // 60}:{seconds % 60:02d} min".ljust(79))
            self.open = True

    def whole(self, text):
        self.say("\r" + " " * 79 + "\r" if self.open else "")
        self.say(f"{text}\n")
        self.open = False


def say(text):
    print(text, end="", flush=True)


def run(command, line):
    """Run pip, and give each line that it prints to `line`. Returns pip's exit status."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="locale", errors="replace"
    ) as pip:
        for text in pip.stdout:
            line(text)
    return pip.returncode


def bar(progress):
    """pip counts the bytes in lines from version 24.1 on; an older one is replaced, or, without a network, kept."""
    run([*PIP, "install", "--quiet", "--upgrade", "pip>=24.1"], progress.line)
    asked = subprocess.run([*PIP, "--version"], capture_output=True, encoding="locale", errors="replace", check=True)
    version = asked.stdout.split()[1]
    return "raw" if [int(part) for part in version.split(".")[:2]] >= [24, 1] else "off"


def main(constraints, extras="notebooks,hf,test,book"):
    progress = Progress(say, sys.stdout.isatty())
    last = collections.deque(maxlen=30)

    def line(text):
        progress.line(text)
        if not text.startswith("Progress "):
            last.append(text)

    command = [*PIP, "install", "--progress-bar", bar(progress), "-c", constraints, "-e", f".[{extras}]"]
    code = run(command, line)
    progress.whole("  done" if code == 0 else "  pip stopped; its last lines:\n" + "".join(last).rstrip())
    extra = os.environ.get("PIP_EXTRA_INDEX_URL", "")
    extra = f" and the address in PIP_EXTRA_INDEX_URL, {extra}" if extra else ""
    if code and any(RETRY in text for text in last):
        say(f"The packages cannot be fetched: check the network{extra}, then call this again.\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
