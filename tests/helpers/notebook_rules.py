"""The rules that strict nbval misses: a rule takes a notebook and returns its violations as sentences."""

import ast
import base64
import copy
import io
import itertools
import json
import re
import tokenize
import warnings

import nbformat

from synth_lib.shapes import GLOSSARY
from tools.build_notebooks import FOLDED, STUB, TITLE, VARIES, notebook_metadata, says_why_it_varies

EINOPS_LAYERS = {"Rearrange", "Reduce", "EinMix"}
EINOPS = {"rearrange", "reduce", "repeat", "einsum", "pack", "unpack", "parse_shape", *EINOPS_LAYERS}
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}")
LOCAL_PATH = re.compile(r"/home/|/Users/|/root/|/tmp/|/var/folders/|\b[A-Z]:\\\w|site-packages|ipykernel_\d")
FLOAT = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)\.\d+(?!\.?\d)")
REMOTE_IMAGE = re.compile(r"""(!\[[^\]]*\]\(\s*<?|src\s*=\s*["']?|url\(\s*["']?)(https?:)?//""", re.I)
CAPTION = "*Figure: "
CODE = re.compile(r"^( *)```.*?^ *```|(`+)(?!`).+?(?<!`)\2(?!`)", re.M | re.S)
TAG = re.compile(r"<(/?[a-z]\w*)\b([^>]*)>", re.I)
ATTRIBUTE = re.compile(r"""([\w-]+)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"']+))?""")
# What GitHub keeps of HTML, and is of use here: no script, no frame, and above all no style.
TAGS = set("a b br code details em i img kbd p pre strong sub summary sup table tbody td th thead tr".split())
ATTRIBUTES = set("align alt colspan height href open rowspan src title width".split())
# "The following macros are not allowed", says GitHub in place of a formula that has one of the first four; the others
# would change macros for the whole page.
MACROS = re.compile(r"\\(operatorname|mbox|[hv]?phantom|DeclareMathOperator|(?:re)?newcommand|def|let|require)\b")
SAFE = {function.__name__: function for function in (len, min, max, sum, sorted, list, set, int)}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def say(cell, message):
    first = next((line for line in cell.source.splitlines() if line.strip()), "(empty)")
    return f"cell `{first}`: {message}"


def texts(output):
    """Everything readable in an output: streams, and each text form of a result."""
    if output.output_type == "stream":
        return [output.text]
    if output.output_type == "error":
        return [output.evalue]
    return [data for kind, data in output.data.items() if kind.startswith("text/")]


def comments(source):
    tokens = tokenize.generate_tokens(io.StringIO(source + "\n").readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def calls(source):
    """Each call in a cell, as (name of what is called, the call)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func.func if isinstance(node.func, ast.Call) else node.func  # Axes(...)(x, "...")
            yield getattr(function, "id", getattr(function, "attr", "")), node


def cells_and_values(notebook):
    """Each code cell with the plain values assigned so far: literals, arithmetic, len(), methods of text."""
    known = {}
    for cell in code_cells(notebook):
        for statement in ast.parse(cell.source).body:
            if isinstance(statement, ast.Assign):
                alone = ast.fix_missing_locations(ast.Module([statement], []))
                try:
                    exec(compile(alone, "cell", "exec"), {"__builtins__": SAFE, **known}, known)
                except Exception:  # it needs torch or a function: no plain value, and the old one is gone
                    for node in ast.walk(alone):
                        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                            known.pop(node.id, None)
        yield cell, dict(known)


def value_of(node, known):
    """The value of an expression, or None where it is no plain one."""
    try:
        return eval(compile(ast.Expression(node), "cell", "eval"), {"__builtins__": SAFE}, known)
    except Exception:
        return None


def is_checker(name):
    return name in ("axes", "Axes") or name.startswith("axes_")


def checked_patterns(source, known):
    """The patterns that a cell checks tensors against: the second argument of axes(x, "batch length")."""
    for name, call in calls(source):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "pattern"]
        if is_checker(name) and (len(call.args) >= 2 or named):
            yield value_of([*named, *call.args[1:]][0], known)


# --- the form of the file ---


def rule_format(notebook, name):
    """Valid nbformat 4.5, the metadata of every machine, unique ids, counts 1..n, no times, at most 300 kB.

    VS Code and PyCharm choose the kernel by the kernelspec, and keep a cell's answers by its id.
    """
    problems = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of ids that are missing or twice there; nbformat would mend them, unasked
            nbformat.validate(copy.deepcopy(notebook))
    except (nbformat.ValidationError, Warning) as error:
        problems.append(f"it is not valid: {str(error).splitlines()[0]}")
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        problems.append(f"the format is {notebook.nbformat}.{notebook.nbformat_minor}, not 4.5")
    if notebook.metadata != notebook_metadata():
        problems.append("the metadata hold more or less than the kernelspec python3 and the language, without versions")
    ids = [cell.get("id") for cell in notebook.cells]
    if len(set(ids)) < len(ids):
        problems.append("two cells have the same id")
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        problems.append(f"the execution counts are {counts}, not 1 to {len(counts)}: run all cells, in order")
    problems += [say(cell, "it stores times") for cell in notebook.cells if "execution" in cell.metadata]
    size = len(json.dumps(notebook, indent=1, ensure_ascii=False).encode())
    if size > 300_000:
        problems.append(f"the notebook has {size // 1000} kB, more than 300: make the figures smaller")
    return problems


def rule_clean_outputs(notebook, name):
    """No error, no warning, nothing that another machine would print differently."""
    problems = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                problems.append(say(cell, f"it fails with {output.ename}"))
            if output.get("name") == "stderr":
                problems.append(say(cell, "it stores a warning or a progress bar (stderr)"))
            text = "\n".join(texts(output))
            problems += [say(cell, f"it prints the address {found}") for found in ADDRESS.findall(text)]
            problems += [say(cell, f"it prints a local path ({found})") for found in LOCAL_PATH.findall(text)]
    return problems


def rule_digits(notebook, name):
    """Floats are printed with at most 4 significant digits: more are not the same on every machine."""
    problems = []
    for cell in code_cells(notebook):
        for text in itertools.chain.from_iterable(map(texts, cell.outputs)):
            for number in FLOAT.findall(re.sub(r"<style.*?</style>|<[^>]+>", " ", text, flags=re.S)):
                digits = re.sub(r"[.,]", "", number).lstrip("0")
                if len(digits) > 4:
                    problems.append(say(cell, f"{number} has more than 4 significant digits"))
    return problems


def rule_captions(notebook, name):
    """Every image is followed by its text alternative."""
    problems = []
    for cell in code_cells(notebook):
        for position, output in enumerate(cell.outputs):
            if any(kind.startswith("image/") for kind in output.get("data", {})):
                after = cell.outputs[position + 1 : position + 2]
                caption = after[0].get("data", {}).get("text/markdown", "") if after else ""
                if not caption.startswith(CAPTION) or len(caption) < len(CAPTION) + 20:
                    problems.append(say(cell, "a figure has no caption: use plots.show(fig, alt)"))
    return problems


def rule_sharp_figures(notebook, name):
    """A figure has two pixels for each that it takes on a page, in which it fits: nothing shrinks its letters.

    That none has less than 8 points, plots.show sees to.
    """
    problems = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if png := output.get("data", {}).get("image/png"):
                pixels = int.from_bytes(base64.b64decode(png[:32])[16:20], "big")  # where PNG writes its width
                width = output.metadata.get("image/png", {}).get("width", 0)
                if pixels not in (2 * width, 2 * width + 1):
                    problems.append(say(cell, f"a figure has {pixels} pixels on {width}: use plots.show(fig, alt)"))
                if width > 800:
                    problems.append(say(cell, f"a figure is {width} pixels wide, a page has 800: make it narrower"))
    return problems


def rule_no_remote_image(notebook, name):
    """An image from elsewhere is gone one day, and is missing without a network."""
    problems = []
    for cell in notebook.cells:
        outputs = list(itertools.chain.from_iterable(map(texts, cell.get("outputs", []))))
        if any(REMOTE_IMAGE.search(text) for text in [cell.source, *outputs]):
            problems.append(say(cell, "it shows an image from another server"))
    return problems


def github_problems(text):
    """What GitHub would not show of a Markdown text, as sentences."""
    problems = []
    plain = CODE.sub("code", text)
    for tag, attributes in TAG.findall(plain):
        names = {name.lower() for name in ATTRIBUTE.findall(attributes)}
        if tag.strip("/").lower() not in TAGS or not names <= ATTRIBUTES:
            problems.append(f"<{tag}{attributes}>: GitHub drops this tag, or what it says beside its name")
    problems += [f"\\{macro} is not allowed in formulas on GitHub" for macro in MACROS.findall(plain)]
    if re.search(r"</summary>[^\n]*\n[^\n]*\S", plain):
        problems.append("below a <summary> stands no empty line: what follows is not read as Markdown")
    columns = 0
    for line in CODE.sub(lambda code: code[0] if "```" not in code[0] else "", text).split("\n"):
        cells = len(re.findall(r"(?<!\\)\|", line.strip())) - 1 if line.lstrip().startswith("|") else 0
        if cells and re.search(r"</?(details|summary)", line, re.I):
            problems.append(f"a fold in a table cannot hold Markdown: {line}")
        if cells and columns and cells != columns:
            problems.append(f"this row has {cells} cells, the one above {columns} (a bar in it is written \\|): {line}")
        columns = cells
    formulas = re.sub(r"\$\$.*?\$\$", "", plain.replace(r"\$", ""), flags=re.S)
    if formulas.count("$") % 2:
        problems.append("a dollar sign has no second one: write \\$ for money")
    for inside, behind in re.findall(r"\$([^$]*)\$(\w?)", formulas):
        if inside != inside.strip() or behind.isdigit():
            problems.append(f"${inside}${behind} is not read as a formula: no blank inside, and no digit behind it")
    return problems


def rule_github(notebook, name):
    """GitHub shows every text as JupyterLab does: tags, formulas, folds and tables.

    Of an output that is plain text as well, GitHub may drop the styles: the words are the same.
    """
    problems = []
    for cell in notebook.cells:
        shown = [cell.source] if cell.cell_type == "markdown" else []
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/plain" not in data:
                shown += [data[kind] for kind in ("text/markdown", "text/html") if kind in data]
        problems += [say(cell, problem) for text in shown for problem in github_problems(text)]
    return problems


# --- the code in the cells ---


def rule_no_semicolon(notebook, name):
    """nbval fails on a semicolon that hides an output; two statements on a line are hard to read."""
    problems = []
    for cell in code_cells(notebook):
        tokens = tokenize.generate_tokens(io.StringIO(cell.source + "\n").readline)
        if any(token.type == tokenize.OP and token.string == ";" for token in tokens):
            problems.append(say(cell, "it has a semicolon"))
    return problems


def rule_short_cells(notebook, name):
    """At most 30 lines that are not blank; 60 in the training chapter."""
    limit = 60 if name.startswith("13_") else 30
    problems = []
    for cell in code_cells(notebook):
        lines = sum(bool(line.strip()) for line in cell.source.splitlines())
        if lines > limit:
            problems.append(say(cell, f"it has {lines} lines, more than {limit}"))
    return problems


def rule_short_lines(notebook, name):
    """What a reader sees of a code cell needs no scrolling sideways: at most 100 characters a line."""
    seen = [cell for cell in code_cells(notebook) if "jupyter" not in cell.metadata]
    longest = [(cell, max(map(len, cell.source.splitlines()), default=0)) for cell in seen]
    return [say(cell, f"a line has {most} characters, more than 100") for cell, most in longest if most > 100]


def rule_varies(notebook, name):
    """nbval ignores an output only where the cell's first line says why."""
    problems = []
    for cell in code_cells(notebook):
        tags = [tag for tag in cell.metadata.get("tags", []) if tag not in FOLDED["tags"]]
        if tags and (tags != ["nbval-ignore-output"] or not says_why_it_varies(cell.source)):
            problems.append(say(cell, f"its output is not compared; its first line says why: `{VARIES}...`"))
        if any("NBVAL" in comment for comment in comments(cell.source)):
            problems.append(say(cell, f"it speaks to nbval; write `{VARIES}...` on its first line instead"))
    return problems


def rule_folded(notebook, name):
    """A folded cell is folded in JupyterLab, in Colab and in a book, and its first line says what it does."""
    problems = []
    for cell in code_cells(notebook):
        held = [key for key in FOLDED if key != "tags" and cell.metadata.get(key) == FOLDED[key]]
        held += [tag for tag in FOLDED["tags"] if tag in cell.metadata.get("tags", [])]
        if held and (len(held) < 3 or not cell.source.startswith(TITLE)):
            problems.append(say(cell, f"it is folded by {', '.join(held)} alone, or does not begin with `{TITLE}`"))
    return problems


def rule_few_true(notebook, name):
    """A reader looks at numbers, maps and sentences; an equality that guards the lesson is a folded assert."""
    outputs = [text for cell in code_cells(notebook) for output in cell.outputs for text in texts(output)]
    printed = sum(len(re.findall(r"\bTrue\b", text)) for text in outputs)
    return [f"it prints True {printed} times, more than 10"] if printed > 10 else []


def names_in(text):
    return re.findall(r"[A-Za-z_]\w*", text)


def shapes_said(comment):
    """The named shapes in a comment: [["batch", "length"]] for `# (batch, length)` and `# batch x length`."""
    item = r"(?:\d+|" + "|".join(GLOSSARY) + r")"
    listed = re.findall(rf"\(\s*({item}(?:\s*,\s*{item})+)\s*\)", comment)
    crossed = re.findall(rf"(?<!\w)({item}(?:\s*[x×]\s*{item})+)(?!\w)", comment)
    shapes = [re.findall(item, text) for text in listed + crossed]
    return [names for names in shapes if set(names) & set(GLOSSARY)]


def rule_shapes_are_checked(notebook, name):
    """A shape said in a comment is checked in the same cell; named axes by a check of these very names."""
    problems = []
    for cell, known in cells_and_values(notebook):
        patterns = [names_in(pattern or "") for pattern in checked_patterns(cell.source, known)]
        for comment in comments(cell.source):
            for said in shapes_said(comment):
                names = [axis for axis in said if not axis.isdigit()]
                if names not in patterns:
                    problems.append(say(cell, f"no axes(...) checks the axes said in `{comment}`"))
            if re.search(r"\bshapes?\b", comment, re.I) and not patterns:
                problems.append(say(cell, f"no axes(...) checks the shape said in `{comment}`"))
    return problems


def rule_sizes_differ(notebook, name):
    """The sizes given to one Axes(...) are pairwise different, so that a swapped axis cannot pass."""
    problems = []
    for cell, known in cells_and_values(notebook):
        for called, call in calls(cell.source):
            if called != "Axes" or isinstance(call.func, ast.Call):
                continue
            sizes = {keyword.arg: value_of(keyword.value, known) for keyword in call.keywords}
            unread = [axis for axis, size in sizes.items() if not isinstance(size, int)]
            if unread:
                problems.append(say(cell, f"the size of {unread[0]} cannot be read; assign a number first"))
                continue
            if {"d_model", "head"} <= set(sizes):
                sizes.setdefault("d_head", sizes["d_model"] // sizes["head"])
            for (one, size), (other, same) in itertools.combinations(sizes.items(), 2):
                if size == same:
                    problems.append(say(cell, f"{one} and {other} are both {size}; a swap would pass"))
    return problems


def axis_names(source, known):
    """The axis names that a cell uses in einops patterns, checks, Axes(...) and axes["..."]."""
    for called, call in calls(source):
        if called in EINOPS:
            last = len(call.args) if called == "einsum" else 1 if called in EINOPS_LAYERS else 2
            named = [keyword.value for keyword in call.keywords if keyword.arg == "pattern"]
            for argument in call.args[:last] + named:
                pattern = value_of(argument, known)
                if isinstance(pattern, str):
                    yield from names_in(pattern)
        if called == "Axes" and not isinstance(call.func, ast.Call):
            yield from (keyword.arg for keyword in call.keywords if keyword.arg)
    for pattern in checked_patterns(source, known):
        yield from names_in(pattern or "")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and is_checker(getattr(node.value, "id", "")):
            yield from names_in(str(value_of(node.slice, known)))


def rule_glossary(notebook, name):
    """One name, one meaning: every axis name is in synth_lib.shapes.GLOSSARY."""
    problems = []
    for cell, known in cells_and_values(notebook):
        for axis in axis_names(cell.source, known):
            if axis != "_" and axis not in GLOSSARY:
                problems.append(say(cell, f"the axis {axis} is not in shapes.GLOSSARY"))
    return problems


# --- the exercises ---


def defined(cell):
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in ast.parse(cell.source).body if isinstance(node, kinds)]


def rule_exercises(notebook, name):
    """An exercise is one function or class, with a check cell below it; no lesson cell needs its answer."""
    problems = []
    checks, answers, seen = {}, set(), []
    for cell in code_cells(notebook):
        if "exercise" in cell.metadata:
            exercise = cell.metadata["exercise"]
            if not re.fullmatch(re.escape(name[:2]) + r"\.[1-9]\d*", exercise) or exercise in seen:
                problems.append(say(cell, f"exercise {exercise} is named twice, or is no {name[:2]}.1, ..."))
            if len(defined(cell)) != 1:
                problems.append(say(cell, f"exercise {exercise} defines {len(defined(cell))} names, not one"))
            seen.append(exercise)
            checks[exercise] = [f'check("{exercise}", {answer})' for answer in defined(cell)]
            answers |= set(defined(cell))
        elif "check" in cell.metadata:
            wanted = checks.pop(cell.metadata["check"], None)
            if wanted is None:
                problems.append(say(cell, "it checks no exercise above it, or one that was checked before"))
            elif cell.source.strip().split("\n")[-1:] != wanted:
                problems.append(say(cell, f"its last line is not {' or '.join(wanted)}"))
        elif "solution" not in cell.metadata:
            used = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
            problems += [say(cell, f"it uses the reader's {answer}") for answer in sorted(used & answers)]
    return problems + [f"the exercise {exercise} has no check cell" for exercise in checks]


def solutions(notebook):
    """The lines between BEGIN SOLUTION and END SOLUTION of each exercise, as one text without indentation."""
    for cell in code_cells(notebook):
        for body in re.findall(r"### BEGIN SOLUTION\n(.*?)\n\s*### END SOLUTION", cell.source, flags=re.S):
            yield cell, squeeze(body)


def squeeze(text):
    """Text that is the same however it is spaced, or quoted as code in a sentence."""
    return re.sub(r"[\s`]+", "", text)


def rule_blank(blank, solved):
    """The blank notebook has the stub where the solved one has a solution, whose text is nowhere in it."""
    marks = ("BEGIN SOLUTION", "END SOLUTION")
    problems = [f"the blank notebook says {mark}" for mark in marks if mark in json.dumps(blank)]
    text = "\n".join(squeeze(cell.source) for cell in blank.cells)
    for cell, body in solutions(solved):
        if len(body) > 20 and body in text:
            problems.append(say(cell, "its solution can be read in the blank notebook"))
    problems += [
        say(cell, "it is for the solved notebook alone") for cell in blank.cells if "solution" in cell.metadata
    ]
    for cell in code_cells(blank):
        if "exercise" in cell.metadata and STUB not in cell.source:
            problems.append(say(cell, f"the blank exercise has no `{STUB}`"))
    return problems


def rule_solutions(notebook, name):
    """In a solved notebook each exercise has a text that says why it works, and a second way that is checked."""
    problems, exercises, solved = [], [], any("BEGIN SOLUTION" in cell.source for cell in code_cells(notebook))
    for cell in notebook.cells if solved else ():
        if "exercise" in cell.metadata:
            exercises.append(cell.metadata["exercise"])
    for exercise in exercises:
        own = [cell for cell in notebook.cells if cell.metadata.get("solution") == exercise]
        told = " ".join(cell.source for cell in own if cell.cell_type == "markdown")
        code = " ".join(cell.source for cell in own if cell.cell_type == "code")
        if len(told.split()) < 15:
            problems.append(f"exercise {exercise}: no text says why the solution works")
        if f'check("{exercise}"' not in code:
            problems.append(f"exercise {exercise}: no second way runs its check")
    return problems


def rule_stretch(notebook, name):
    """A chapter has one exercise without a bound: "### Stretch 02.6: ...", numbered as the others are."""
    exercises = {cell.metadata["exercise"] for cell in code_cells(notebook) if "exercise" in cell.metadata}
    headings = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    stretch = re.findall(r"^### Stretch (\S+):", "\n".join(headings), flags=re.M)
    if exercises and (len(stretch) != 1 or stretch[0] not in exercises):
        return [f"it has {len(stretch)} headings `### Stretch {name[:2]}.N:` with an exercise, not one"]
    return []


RULES = [rule for name, rule in globals().items() if name.startswith("rule_") and name != "rule_blank"]
