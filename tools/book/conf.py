"""Settings of Sphinx. build.py adds what the public address decides."""

import importlib.util
import shutil
from pathlib import Path

from docutils import nodes

project = "Synthesizers"
author = ""
html_title = "Synthesizers"
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]

nb_execution_mode = "off"  # the stored outputs are shown
nb_merge_streams = True
nb_render_markdown_format = "myst"  # a caption may hold a formula
nb_ipywidgets_js = {}  # no chapter has widgets
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
myst_links_external_new_tab = False

copybutton_selector = ".cell_input pre, div.highlight pre:not(.cell_output pre)"  # code, not what it printed

html_theme = "sphinx_book_theme"
html_theme_options = {
    "navbar_persistent": [],  # the side bar has a search field
    "show_toc_level": 2,
    "pygments_dark_style": "a11y-high-contrast-dark",
    "extra_footer": "Formulas are drawn by MathJax 3 (Apache License 2.0), which lies in this site.",
}
html_context = {"default_mode": "auto"}
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_use_index = False
html_domain_indices = False
html_show_sphinx = False
html_show_copyright = False
html_sourcelink_suffix = ""

# Nothing is fetched from elsewhere when a page is read: this is a file of the site.
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {"options": {"enableMenu": False}}
MATHJAX_PARTS = ("tex-chtml.js", "output/chtml", "input/tex/extensions")


def copy_mathjax(app, exception):
    """Of the package that brings MathJax, what a page can ask for."""
    package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    for name in MATHJAX_PARTS if exception is None else ():
        place = app.outdir / "_static" / "mathjax" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (package / name).is_dir() else shutil.copy)(package / name, place)


def tell_figures(app, doctree):
    """The caption below a figure, which plots.show displays, tells it in words; its alternative says so, and no more.

    A screen reader would say the same words twice.
    """
    told = None
    for node in doctree.findall(lambda node: isinstance(node, (nodes.image, nodes.paragraph))):
        if isinstance(node, nodes.image):
            told = node
        elif told is not None and node.astext().startswith("Figure: "):
            told["alt"] = "A figure. The words below it tell what it shows."
            told = None


def name_folds(app, pagename, templatename, context, doctree):
    """A folded cell is named by its title alone, and not by the same words for each."""
    context["body"] = context.get("body", "").replace(' aria-label="Toggle hidden content"', "")


def setup(app):
    app.connect("doctree-read", tell_figures)
    app.connect("html-page-context", name_folds)
    app.connect("build-finished", copy_mathjax)
