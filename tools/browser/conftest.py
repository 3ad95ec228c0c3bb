"""A browser, the site and JupyterLab for the tests of this folder, which tools/browser/run.py calls.

Nothing waits for a time: each wait is for something that the page shows, with a limit for one that never does.
"""

import functools
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import nbformat
import pytest
from playwright.sync_api import expect, sync_playwright

from tools.browser.run import MINUTE, OUT, ROOT

QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    expect.set_options(timeout=2 * MINUTE)
    OUT.mkdir(parents=True, exist_ok=True)
    for old in (*OUT.glob("*.jpg"), *OUT.glob("*.png")):
        old.unlink()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=QUIET)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """open_page(address, width, scheme): a page of a window that reaches this machine alone.

    At the end: no page asked for anything from elsewhere, and none had an error in its script.
    """
    elsewhere, errors, contexts = [], [], []

    def guard(route):
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            return route.continue_()
        elsewhere.append(route.request.url)
        return route.abort()

    def open_one(address, width=1280, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(2 * MINUTE)
        context.route(re.compile("^https?:"), guard)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not elsewhere
    assert not errors


@contextmanager
def pictured(page, name):
    """Keep a small picture of the first screens of a page, and the whole page where a check in the block fails."""
    height = min(2400, page.evaluate("document.documentElement.scrollHeight"))
    part = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
    page.screenshot(path=OUT / f"{name}.jpg", type="jpeg", quality=50, full_page=True, clip=part)
    try:
        yield
    except BaseException:
        page.screenshot(path=OUT / f"{name}.png", full_page=True)
        raise


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def site():
    """The address of the built site, as a host would serve it."""
    serve = functools.partial(Silent, directory=str(ROOT / "build" / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def jupyter_lab(folder):
    """JupyterLab in `folder`, with settings of its own. -> a function: the address of one of its files."""
    own = folder.parent / "jupyter"
    settings = own / "lab" / "user-settings" / "@jupyterlab"
    for name, text in {
        "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
        "notebook-extension/tracker": '{"windowingMode": "none"}',  # cells that are off the screen are on the page too
    }.items():
        file = settings / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf8")
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(own), "JUPYTER_RUNTIME_DIR": str(own / "runtime")}
    environment.pop("TQDM_DISABLE", None)  # the tests of notebooks want no bars; a reader has them
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--allow-root"]
    lab = subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, encoding="utf8", errors="replace"
    )
    told, address = [], None
    for line in lab.stderr:
        told.append(line)
        if address := re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", line):
            break
    assert address, "".join(told)
    while True:  # the address is printed a moment before it answers
        try:
            socket.create_connection(("127.0.0.1", urlsplit(address[1]).port)).close()
            break
        except ConnectionRefusedError:
            assert lab.poll() is None, "".join(told)

    def keep_log():
        with (OUT / "jupyterlab.log").open("w", encoding="utf8") as log:
            log.writelines(told)
            log.writelines(lab.stderr)

    reader = threading.Thread(target=keep_log)
    reader.start()
    try:
        yield lambda file: f"{address[1]}/lab/tree/{file}?reset&token={address[2]}"
    finally:
        lab.terminate()
        lab.wait()
        reader.join()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """JupyterLab in a copy of what a reader has, without the stored outputs: saving there changes nothing here."""
    copy = tmp_path_factory.mktemp("lab") / "a course"
    copy.mkdir()
    for name in ("synth_lib", "data", "notebooks"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for path in (copy / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)
    with jupyter_lab(copy) as address:
        yield address
