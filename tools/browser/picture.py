"""Take the picture of the README: the live page after one word is exchanged. `make browser` brings what it needs.

    .venv/bin/python tools/browser/picture.py        # writes docs/live.png
"""

import io
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "live.png"
sys.path.insert(0, str(ROOT))

from tools.browser.run import find_browser  # noqa: E402


def main():
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 900}, color_scheme="light")
        page.goto((ROOT / "docs" / "live.html").as_uri())
        page.get_by_label("word 2", exact=True).select_option(label="dog")
        words, maps = page.locator("#sentence"), page.locator("#maps").bounding_box()
        page.evaluate("y => scrollTo(0, y)", maps["y"] - words.bounding_box()["height"] - 12)
        end = page.locator("#dot_product > :last-child").bounding_box()
        taken = page.screenshot(clip={"x": 0, "y": 0, "width": 1240, "height": end["y"] + end["height"] + 8})
        browser.close()
    # 64 colours: less than half the bytes, to the eye the same.
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(64).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
