"""The page that a student gets: the same in HTML and in plain text."""

import html
import textwrap

WORDS = {"right": "right", "wrong": "not yet", "not answered": "not answered", "not graded": "not graded"}
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
        body.append("<table><tr><th>Exercise</th><th>Points</th><th>Result</th><th>What the check says</th></tr>")
        for key, whole in chapter.points.items():
            status, message, points, shown = row["exercises"][key]
            worth = f"{number(points)} of {whole}" if whole else "not graded"
            text.append(f"{key}  {titles[key]}: {worth}, {WORDS[status]}")
            text.extend([*textwrap.wrap(message, 86, initial_indent="    ", subsequent_indent="    "), ""])
            text.extend([f"    {line}" for line in shown.split("\n")] + [""] if shown else [])
            cells = [f"{key} {titles[key]}", worth, WORDS[status], message]
            told = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            told = told.removesuffix("</td>") + (f"<pre>{html.escape(shown)}</pre>" if shown else "") + "</td>"
            body.append(f'<tr class="{status.replace(" ", "-")}">{told}</tr>')
        body.append("</table>")
    if row["notes"]:
        heading("Notes on your notebooks", 2)
        for note in row["notes"]:
            paragraph(note)
    title = html.escape(row["student"])
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    head = f'<!doctype html>\n<html lang="en"><head>{head}</head>'
    return "\n".join(text), f"{head}\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
