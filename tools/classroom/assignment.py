"""Write what students get: blank notebooks, the library that their checks need, and a README with two steps.

    make assignment CHAPTERS="02 03" OUT=folder [REPO=https://... REF=main]
    python tools/classroom/assignment.py --chapters "02 03" --out folder --nbgrader     # instead, a course for nbgrader

REPO is the address at which you publish the folder; notebooks then open in Colab by a link. Points and due notes come
from classroom.toml. docs/teaching.md is the guide.
"""

import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from synth_lib import checks  # noqa: E402
from tools.build_notebooks import STUB, build, colab_address, read_source  # noqa: E402
from tools.classroom import course as courses  # noqa: E402
from tools.version import version  # noqa: E402

OF_BASELINES = ("scikit-learn", "sacrebleu")  # for these functions alone; scikit-learn brings scipy
DATA = {  # what the code of a chapter says, and the files of data/ that it then reads
    r"\bload_text\(|\bshakespeare\(\)": "shakespeare.*",
    r"\bshakespeare\(.*tinyshakespeare": "tinyshakespeare.*",
    r"\bglosses\(": "wordnet_*",
    r'DATA / "results"': "results/*",
    r"\bsynth_lib\.lab\.tasks\b": "**/*",  # by the names of tasks it reads any corpus
}
CONFIG = f"""c = get_config()
c.CourseDirectory.course_id = "synthesizers"
c.ClearSolutions.code_stub = {{"python": "{STUB}"}}
c.ExecutePreprocessor.timeout = 300
"""


def notebook(chapter, solved, repository=None, ref=None):
    """The notebook of a chapter, not executed, with the points of classroom.toml.

    A solved one is what a release is made of, so it has no text about solutions. Links to pages outside notebooks/,
    which are not handed out, become their words.
    """
    made = build(chapter.path, solved, repository, ref)
    made.cells = [cell for cell in made.cells if "solution" not in cell.metadata]
    for cell in made.cells:
        cell.source = re.sub(r"\[([^\]]+)\]\((?:\.\./)+[^)]*\)", r"\1", cell.source)
        if "check" in cell.metadata:
            cell.metadata.nbgrader.points = chapter.points[cell.metadata.check]
    return made


def copy_library(course, folder):
    """Begin a new folder: the subject, the checks with the exercises of these chapters alone, and what they need of the
    wings and of the data.

    Raises:
        CourseError: the folder is there, and not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise courses.CourseError(f"{folder} is not empty: name a new folder, so that nothing of yours is lost.")
    source, target = ROOT / "synth_lib", folder / "synth_lib"
    skipped = shutil.ignore_patterns("__pycache__", "chapter_*.py")
    for name in ("checks", *wings_of(course)):
        shutil.copytree(source / name, target / name, ignore=skipped)
    for path in [*source.glob("*.py"), *banks(course)]:
        shutil.copy(path, target / path.relative_to(source))
    for path in data_of(course):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)


def banks(course):
    return [ROOT / "synth_lib" / "checks" / "bank" / f"chapter_{number}.py" for number in course.chapters]


def wings_of(course):
    """The folders of the library that the chapters or their exercises import, and those that these import."""
    source, wings = ROOT / "synth_lib", set()
    known = {path.parent.name for path in source.glob("*/__init__.py")} - {"checks"}
    files = [chapter.path for chapter in course.chapters.values()] + banks(course)
    while files:
        code = "\n".join(path.read_text(encoding="utf8") for path in files)
        new = set(re.findall(r"^[^#\n]*\bsynth_lib(?:\.| import )(\w+)", code, re.M)) & known - wings
        wings |= new
        files = [path for wing in new for path in (source / wing).rglob("*.py")]
    return sorted(wings)


def data_of(course):
    """The files of data/ that the code of these chapters reads, with the licences, as paths from ROOT; [] for none."""
    code = "\n".join(text for chapter in course.chapters.values() for text in chapter.lesson)
    patterns = [pattern for words, pattern in DATA.items() if re.search(words, code)]
    patterns += ["LICENSES/*", "README.md"] if patterns else []
    found = {path for pattern in patterns for path in (ROOT / "data").glob(pattern) if path.is_file()}
    return sorted(path.relative_to(ROOT) for path in found)


def requirements(course):
    """What a student installs: JupyterLab and what the library and these chapters need, in the versions of `make`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["notebooks"]]
    lesson = "\n".join(text for chapter in course.chapters.values() for text in chapter.lesson)
    if not re.search(r"\b(copy_nearest|bleu|tfidf_logistic_regression|scipy)\b", lesson):
        wanted = [package for package in wanted if not package.startswith(OF_BASELINES)]
    if re.search(r"\btransformers\b", lesson):
        wanted += project["optional-dependencies"]["hf"]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    pinned = {pin.partition("==")[0]: pin for pin in pins}
    return "".join(pinned[re.match(r"[\w.-]+", package)[0]] + "\n" for package in wanted)


def named_before(course):
    """The chapters that a chapter names under "Before you start" and that are not handed out."""
    named = set()
    for chapter in course.chapters.values():
        start = re.search(r"\*\*Before you start:\*\*(.*?)(?=\n- \*\*|\Z)", read_source(chapter.path)[0].source, re.S)
        named |= set(re.findall(r"\((\d\d)_\w+\.ipynb\)", start[1])) if start else set()
    return sorted(named - course.chapters.keys())


def readme(course, repository, ref):
    """The two steps to start, on one's own machine and in Colab, and what is due when."""
    files = {number: f"{chapter.path.stem}.ipynb" for number, chapter in course.chapters.items()}
    first = next(iter(files.values()))
    links = [f"[{file}]({colab_address(repository, ref, file)})" for file in files.values()]
    if colab_address(repository, ref, first):
        colab = f"1. Open the notebook in Colab: {', '.join(links)}.\n"
        colab += "2. Run it from the top: the first code cell fetches the library.\n"
    else:
        colab = (
            "1. In Colab choose File > Upload notebook and upload the notebook; then open Files, the folder on the\n"
            "   left, and upload `library.zip` there.\n"
            "2. Add a cell at the top with `!unzip -qo library.zip`, run it, then run the notebook from the top.\n"
        )
    table = ["| chapter | file | points | due |", "|---|---|---|---|"]
    worth = ["| exercise | | points |", "|---|---|---|"]
    for number, chapter in course.chapters.items():
        table.append(f"| {chapter.title} | {files[number]} | {sum(chapter.points.values())} | {chapter.due or '-'} |")
        for key, points in chapter.points.items():
            worth.append(f"| {key} | {checks.find(key).title} | {points or 'does not count'} |")
    return f"""# {len(files)} chapter{"s" * (len(files) > 1)} to solve

{chr(10).join(table)}

## Start on your own machine

You need Python 3.11 or newer. In this folder, in a terminal:

1. Install, once. This downloads torch and JupyterLab into `.venv`: 0.4 GB, or on Linux 2.9 GB with torch for CUDA:

   ```
   python3 -m venv .venv
   .venv/bin/python -m pip install -r requirements.txt
   ```

   On Windows: `py -m venv .venv`, then `.venv\\Scripts\\python -m pip install -r requirements.txt`.
   Debian and Ubuntu may ask for `sudo apt install python3-venv` first.
2. Open: `.venv/bin/python -m jupyterlab {first}`, on Windows `.venv\\Scripts\\python -m jupyterlab {first}`.

## Start in Colab

{colab}
Colab forgets its files: download your notebook when you stop (File > Download > .ipynb).

## Solve

{chr(10).join(worth)}

Put your code where a cell says `{STUB}`, then run the check below it. It says "not answered yet", "right",
or what your answer looks like and what to read again. `from synth_lib import checks; checks.progress()` says how far
you are. Keep the names of the functions: your work is found by them.
Before you hand in: Restart Kernel and Run All Cells. Then hand in the notebooks, nothing else.

A link to a chapter that is not in this folder leads nowhere; you can do without.

Made from version {version()} of the course.
"""


def write(course, out, repository=None, ref="main"):
    """The folder to hand out."""
    copy_library(course, out)
    for chapter in course.chapters.values():
        nbformat.write(notebook(chapter, False, repository, ref), out / f"{chapter.path.stem}.ipynb")
    (out / "requirements.txt").write_text(requirements(course), encoding="utf8")
    (out / "README.md").write_text(readme(course, repository, ref), encoding="utf8")
    with zipfile.ZipFile(out / "library.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted([*(out / "synth_lib").rglob("*"), *(out / "data").rglob("*")]):
            archive.write(path, path.relative_to(out))


def write_nbgrader(course, out):
    """A course folder for nbgrader: source/NN_name/NN_name.ipynb with solutions, its settings, and the library."""
    copy_library(course, out)
    for chapter in course.chapters.values():
        folder = out / "source" / chapter.path.stem
        folder.mkdir(parents=True)
        nbformat.write(notebook(chapter, True), folder / f"{chapter.path.stem}.ipynb")
    (out / "nbgrader_config.py").write_text(CONFIG, encoding="utf8")


def problem_of(options):
    """What is wrong with the options, as a sentence, or None."""
    if not courses.chosen_numbers(options.chapters):
        return 'CHAPTERS is empty: say which chapters are handed out, such as CHAPTERS="02 03".'
    if options.out.exists() and not options.out.is_dir():
        return f"OUT={options.out} is a file: name a new folder."
    if options.repo is not None and not colab_address(options.repo, "main", ""):
        return f"REPO={options.repo} is no address on GitHub, such as https://github.com/you/course."
    if options.nbgrader and options.repo is not None:
        return "NBGRADER hands out without links: leave REPO out."
    if options.ref is not None and options.repo is None:
        return f"REF={options.ref} is a branch or tag of REPO, and REPO is missing."
    return None


def main():
    parser = courses.Parser("Write what students get; see docs/teaching.md.")
    parser.add_argument("--chapters", required=True, help='such as "02 03"')
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--repo", default=None, help="the address on GitHub at which you publish the folder")
    parser.add_argument("--ref", default=None, help="its branch or tag (main)")
    parser.add_argument("--nbgrader", action="store_true", help="a course folder for nbgrader instead")
    options = parser.parse_args()
    try:
        if problem := problem_of(options):
            return courses.fail(problem)
        course = courses.read(courses.chosen_numbers(options.chapters))
        if options.nbgrader:
            write_nbgrader(course, options.out)
            said = "a course for nbgrader. Keep it to yourself: source/ holds the solutions."
        else:
            write(course, options.out, options.repo, options.ref or "main")
            grade = f"make grade SUBMISSIONS=folder OUT=grades.csv CHAPTERS='{options.chapters}'"
            said = f"hand out all of it. Grade with: {grade}"
    except courses.CourseError as error:
        return courses.fail(error)
    except OSError as error:
        return courses.fail(f"{options.out} cannot be written ({error.strerror}): name a folder that you may write to.")
    if named := named_before(course):
        numbers = f"chapter{'s' * (len(named) > 1)} {', '.join(named)}"
        print(f'Named under "Before you start", but not in the folder: {numbers}. Give students what they do not know.')
    print(f"{options.out}: {said}")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # a path that a pipe of Windows cannot write stops nothing
    sys.exit(main())
