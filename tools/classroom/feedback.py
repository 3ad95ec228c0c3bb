"""The page that a student gets: the same in HTML and in plain text."""

import html
import textwrap

WORDS = {"right": "right", "wrong": "not yet", "not answered": "not answered", "not graded": "could not be run"}
BLANK = "Not answered yet: the line raise NotImplementedError is reached."
STEPS = {  # in this order
    "not graded": "Look at {exercise} first. Restart Kernel and Run All Cells shows what stops.",
    "wrong": "Look at {exercise} first. Read what the check says, change your code, and run the check again.",
    "not answered": "{exercise} comes next. The hints under its cell say where to start.",
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; color: #1a1a1a }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #ccc; padding: .4em .6em; text-align: left; vertical-align: top }
td:nth-child(2) { white-space: nowrap }
.right td:nth-child(3) { font-weight: bold }
"""


def number(points):
    """2 rather than 2.0, and 0.33 rather than 0.3333."""
    return f"{points:.2f}".rstrip("0").rstrip(".")


def pages(row, course, titles):
    """-> (text, html) of one student's row."""
    text, body = [], []

    def heading(words, level):
        text.extend([words, ("=" if level == 1 else "-") * len(words), ""])
        body.append(f"<h{level}>{html.escape(words)}</h{level}>")

    def paragraph(words):
        text.extend([*textwrap.wrap(words, 90, break_long_words=False), ""])
        body.append(f"<p>{html.escape(words)}</p>")

    heading(f"{row['student']}: {number(row['total'])} of {number(row['of'])} points", 1)
    for chapter in course.chapters.values():
        heading(chapter.title, 2)
        if chapter.due:
            paragraph(f"Due: {chapter.due}")
        own = {key: row["exercises"][key] for key in chapter.points}
        together = said_once(own)
        if together:
            paragraph(together)
        columns = ["Exercise", "Points", "Result"] + ([] if together else ["What the check says"])
        body.append(f"<table><tr>{''.join(f'<th>{column}</th>' for column in columns)}</tr>")
        for key, whole in chapter.points.items():
            status, message, points, shown = own[key]
            worth = f"{number(points)} of {whole}" if whole else "does not count"
            if message.startswith(("Not yet: ", "Your code stops")) and "Read again" not in message:
                message += " The hints under the exercise's cell may help."
            if together:
                message = ""
            again = message.lower().startswith(WORDS[status])
            text.append(f"{key}  {titles[key]}: {worth}" + ("" if again else f", {WORDS[status]}"))
            text.extend(textwrap.wrap(message, 86, initial_indent="    ", subsequent_indent="    "))
            text.extend([] if together else [""])
            text.extend([f"    {line}" for line in shown.split("\n")] + [""] if shown else [])
            cells = [f"{key} {titles[key]}", worth, WORDS[status]] + ([] if together else [alone(message)])
            line = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            line = line.removesuffix("</td>") + (f"<pre>{html.escape(shown)}</pre>" if shown else "") + "</td>"
            body.append(f'<tr class="{status.replace(" ", "-")}">{line}</tr>')
        if together:
            text.append("")
        body.append("</table>")
    if row["notes"]:
        heading("Notes on your notebooks", 2)
        for note in row["notes"]:
            paragraph(note)
    heading("What to do next", 2)
    paragraph(next_step(row["exercises"], titles))
    title = html.escape(row["student"])
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    head = f'<!doctype html>\n<html lang="en"><head>{head}</head>'
    return "\n".join(text), f"{head}\n<body>\n" + "\n".join(body) + "\n</body></html>\n"


def alone(message):
    """What the check says, without the status that stands beside it."""
    message = message.removeprefix("Right.").removeprefix("Not yet: ").removeprefix(BLANK).strip()
    word = message.partition(" ")[0]
    return message if "_" in word else message[:1].upper() + message[1:]  # a name of code stays as it is


def said_once(exercises):
    """One line for a chapter whose exercises all got the same message and no points; "" for any other."""
    messages = {message for _, message, *_ in exercises.values()}
    if len(exercises) < 2 or len(messages) > 1 or {status for status, *_ in exercises.values()} & {"right", "wrong"}:
        return ""
    if BLANK in messages:
        return "Nothing is answered in this chapter yet. The first exercise is a good start."
    return messages.pop()


def next_step(exercises, titles):
    """Which exercise to look at, in one or two sentences."""
    for status, step in STEPS.items():
        key = next((key for key, verdict in exercises.items() if verdict[0] == status), None)
        if key and exercises[key][1].startswith("No notebook"):
            return f"Hand in your notebook of chapter {key[:2]}."
        if key and exercises[key][1].startswith("Keep the name"):
            return f"Give {key} ({titles[key]}) the name back that it had, and hand in again."
        if key:
            return step.format(exercise=f"{key} ({titles[key]})")
    return "Everything is right. There is nothing left to do here."
