"""Check a page in a browser: sideways scrolling, overlapping text, contrast."""

from tests.support.chromium import Chromium
from tests.support.paths import CHECKOUT

_AXE = CHECKOUT / "build" / "node_modules" / "axe-core" / "axe.min.js"
AXE = _AXE if _AXE.is_file() else None

# Each gives a list of what is wrong.
CHECKS = {
    "the page scrolls sideways": """
      document.documentElement.scrollWidth > innerWidth
        ? [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1
            && !e.closest(".scroll, .wide, .md-typeset__scrollwrap, pre")).slice(0, 5)
            .map(e => e.outerHTML.slice(0, 120))
        : []""",
    # Boxes of letters, less a pixel on every side; what is scrolled out of sight in a table is cut off there.
    "text lies on text": """(() => {
      const boxes = [], range = document.createRange();
      const root = ["article.md-content__inner", "main", "body"].map(e => document.querySelector(e)).find(e => e);
      const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const node = walker.currentNode, parent = node.parentElement;
        if (!node.data.trim() || parent.closest("title, script, style, .heard, .headerlink, [hidden]")) continue;
        if (!parent.checkVisibility({visibilityProperty: true})) continue;
        range.selectNodeContents(node);
        const frame = parent.closest(".scroll, .wide, pre, .md-typeset__scrollwrap")?.getBoundingClientRect();
        for (const box of range.getClientRects()) {
          if (box.width < 2 || box.height < 4) continue;
          if (frame && (box.right > frame.right || box.left < frame.left)) continue;
          // A line's box is higher than its letters.
          const slack = 0.22 * box.height;
          boxes.push({l: box.left + 1, r: box.right - 1, t: box.top + slack, b: box.bottom - slack,
                      words: node.data.trim().slice(0, 40)});
        }
      }
      boxes.sort((one, other) => one.t - other.t);
      const found = [];
      for (let i = 0; i < boxes.length; i++)
        for (let j = i + 1; j < boxes.length && boxes[j].t < boxes[i].b; j++)
          if (boxes[i].l < boxes[j].r && boxes[j].l < boxes[i].r) found.push([boxes[i].words, boxes[j].words]);
      return found.slice(0, 5);
    })()""",
}


def show(browser: Chromium, width: int, scheme: str, media: str = "") -> None:
    """Give the page a width and a colour scheme ("light", "dark"), or the medium "print"."""
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", media=media, features=features)


def axe_complaints(browser: Chromium) -> list[str]:
    """Return the violations that axe-core reports on contrast, names and structure (WCAG 2, A and AA)."""
    browser.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    return browser.evaluate(
        "axe.run({runOnly: ['wcag2a', 'wcag2aa']}).then(found => found.violations.flatMap("
        "each => each.nodes.map(node => each.id + ' ' + node.html.slice(0, 160))))"
    )
