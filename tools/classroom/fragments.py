"""Which answer may lack a part that stands in a cell that cannot be read.

What students send is looked at as text, line by line: it is not parsed here, where the grader itself runs.
"""

import builtins
import keyword
import re

from tools.classroom import submissions

BEGINS = re.compile(r"(?:async\s+def|def|class)\s+(\w+)|(\w+)\s*=[^=]")
BINDS = re.compile(r"(?:(?:async\s+)?def|class|import|from)\b|[\w\s,]*=[^=]")
INDENTED = re.compile(r"(?:[ \t]*\n)*[ \t]+\S")
QUOTED = re.compile(r'""".*?"""|\'\'\'.*?\'\'\'|"[^"\n]*"|\'[^\'\n]*\'|#[^\n]*', re.S)
KNOWN = {*keyword.kwlist, *vars(builtins)}


def lost_part(name, cells, unreadable, chapter):
    """The number of a cell that cannot be read and may hold a part of the answer `name`, or None.

    Such a cell defines `name`, or something that the answer looks up and nothing else defines; or it is the rest of a
    definition, cut off from its beginning, and no name speaks against its being the answer's.
    """
    readable = "\n".join(cell.text for cell in cells if cell.kind == "code" and cell.number not in unreadable)
    present = bindings(readable) | bindings("\n".join(chapter.lesson))  # what a notebook lacks of it is filled in
    own, looked_up = used_by(name, readable)
    for cell in cells:
        if cell.number in unreadable:
            defined = bindings(cell.text)
            if name in defined or defined & (looked_up - present):
                return cell.number
            mentioned = words(cell.text)
            apart = own and mentioned and not own & mentioned
            whole = any(submissions.definition(name).search(cell.text) for name in chapter.names.values())
            cut_off = "unexpected indent" in unreadable[cell.number] and not whole
            if (INDENTED.match(cell.text) or cut_off) and not apart:
                return cell.number
    return None


def used_by(name, text):
    """What the definitions of `name`, and of all that they look up, bind for themselves and look up."""
    blocks = definitions(text)
    own, looked_up, waiting = set(), set(), {name}
    while waiting:
        looked_up |= waiting
        block = "\n".join(line for one in waiting for line in blocks.get(one, ()))
        inside = locals_of(block)
        own |= inside
        waiting = words(block) - inside - looked_up
    return own, looked_up


def definitions(text):
    """name -> the lines of its definitions: each from the one that begins it to the next one that is not indented."""
    blocks, name = {}, None
    for line in text.split("\n"):
        if line.strip() and line[0] not in " \t)]}":
            begins = BEGINS.match(line)
            name = begins and (begins[1] or begins[2])
        if name:
            blocks.setdefault(name, []).append(line)
    return blocks


def words(text):
    """The names in a text, without those behind a dot."""
    return set(re.findall(r"(?<![.\w])[^\W\d]\w*", QUOTED.sub(" ", text))) - KNOWN


def bindings(text):
    """The names that the lines of a text bind: by a definition, an import, an assignment."""
    heads = [line.partition("=")[0].partition("(")[0] for line in text.split("\n") if BINDS.match(line.strip())]
    return words("\n".join(heads))


def locals_of(text):
    """Arguments, and what is assigned within: the names that the rest of a definition may go on with."""
    inside = re.findall(r"\bdef\s+\w+\s*\(([^()]*)|\blambda\b([^:\n]{,200}):|\bfor\b(.{,200}?)\bin\b", text)
    lines = [line for line in text.split("\n") if line[:1] in (" ", "\t")]
    assigned = "\n".join(line for line in lines if not re.match(r"\s*(def|class)\b", line))
    return words("\n".join(part for parts in inside for part in parts)) | bindings(assigned)
