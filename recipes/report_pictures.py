"""Pictures of a report for the documentation, at a laptop's and a phone's width.

python recipes/report_pictures.py runs/quickstart/report.html --output docs/pictures
python recipes/report_pictures.py runs/live/report.html --output docs/pictures --slider     # of a comparison with --snapshots
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = {1280: 900, 390: 1100}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--slider", action="store_true", help="the attention slider at a middle and the last epoch instead"
    )
    options = parser.parse_args()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, height in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(180_000)
            page.goto(options.report.absolute().as_uri())
            if not options.slider:
                page.screenshot(path=options.output / f"report-{width}.png")
            elif width == max(WIDTHS):
                page.set_viewport_size({"width": 640, "height": height})
                slider = page.locator(".slider input[type=range]").first
                last = int(slider.get_attribute("max") or 0)
                for name, stop in (("escape", last // 2), ("end", last)):
                    slider.fill(str(stop))
                    page.locator("figure.slider").first.screenshot(path=options.output / f"attention-{name}.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
