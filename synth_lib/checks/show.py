"""How a notebook shows a verdict: a sign, a word, sentences that wrap at words, a link to the section to read again.

The looks stand in the elements themselves, nothing is fetched and nothing runs. Letters have the colour of the page,
so that they can be read on a light and on a dark one; where a viewer takes the looks away, as GitHub does, the sign
and the words are left.
"""

import re
from html import escape

# The sign, the word and the colour of each status. The colours differ in brightness from white and from black.
LOOKS = {
    "right": ("✓", "right", "#2E8B57"),
    "wrong": ("✗", "not right yet", "#D55E00"),
    "not answered": ("○", "not answered yet", "#808080"),
    "missing": ("○", "its cell has not run", "#808080"),
}
BOX = "border: 1px solid #808080; border-left: 6px solid {}; padding: 8px 16px; max-width: 46em; line-height: 1.5"
PARAGRAPHS = re.compile(r" (?=\(Inputs: |Read again: |It also prints)")
SAID = re.compile(r"(Right\.|Not yet:|Not answered yet:|Its cell has not run\.) ?")  # the word says it


def html(verdict, sections):
    """A Verdict as HTML. sections: the headings to which its message may send the reader, in the same notebook."""
    sign, word, colour = LOOKS[verdict.status]
    title = f'<span style="color: {colour}">{sign}</span> Exercise {escape(verdict.key)}: {word}'
    lines = [f'<p style="margin: 0"><strong>{title}</strong></p>']
    said = SAID.match(verdict.message)
    message = verdict.message[said.end() :] if said else verdict.message
    for part in PARAGRAPHS.split(message[:1].upper() + message[1:]) if message else ():
        lines.append(f'<p style="margin: 6px 0 0; overflow-wrap: anywhere">{_linked(part, sections)}</p>')
    if verdict.shown:
        lines.append(f'<pre style="margin: 6px 0 0; overflow-x: auto">{escape(verdict.shown)}</pre>')
    no_mathematics = "tex2jax_ignore mathjax_ignore"  # a dollar in an error's message begins no formula
    return "\n".join([f'<div class="{no_mathematics}" style="{BOX.format(colour)}">', *lines, "</div>"])


def _linked(part, sections):
    """The text of a paragraph; the headings in "Read again: ..." are links, by the anchors of JupyterLab."""
    text = escape(part)
    for section in sections if part.startswith("Read again: ") else ():
        anchor = escape(section.replace(" ", "-"))
        text = text.replace(escape(f'"{section}"'), f'<a href="#{anchor}">{escape(section)}</a>')
    return text
