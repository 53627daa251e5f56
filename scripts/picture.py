"""Generator of docs/pictures/demo.svg, from a run of the demo on this machine.

python scripts/picture.py           play the demo and draw it
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from recollect.cli.demo import DemoStage, show_scenes

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "demo.svg"
WIDTH = 82

# Readable on white and on dark pages.
THEME = TerminalTheme(
    (24, 27, 34),
    (220, 223, 228),
    [(24, 27, 34), (224, 108, 117), (127, 190, 127), (229, 192, 123), (97, 160, 222), (190, 130, 210), (102, 194, 205),
     (220, 223, 228)],
)  # fmt: skip

# The template of rich without its remote fonts: the picture makes no requests.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>recollect demo</title>
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def drawn() -> str:
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print("[dim]$[/dim] recollect demo")
    with tempfile.TemporaryDirectory() as directory:
        stage = DemoStage(console, directory, {"store": str(Path(directory) / "agent.db")})
        show_scenes(stage)
    if stage.failed_checks:
        raise SystemExit("the demo does not hold what it claims; nothing was drawn")
    return console.export_svg(title="recollect demo", theme=THEME, code_format=SVG, unique_id="demo")


if __name__ == "__main__":
    picture = drawn()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")
