"""The LaTeX of every table compiles on its own, where a TeX engine is at hand."""

import shutil
import subprocess
from pathlib import Path

import pytest

from slb_autotune.report import table as rendering
from slb_autotune.report.table import Column, Table

PDFLATEX = shutil.which("pdflatex")
RESULTS = Path(__file__).parents[2] / "results" / "tables"

pytestmark = pytest.mark.skipif(
    PDFLATEX is None,
    reason="there is no pdflatex (Debian: texlive-latex-base and texlive-latex-recommended)",
)


def compiled(text: str, folder: Path) -> str:
    """What TeX said of a document, the second time, when its columns have settled."""
    (folder / "table.tex").write_text(text)
    for _ in range(2):
        done = subprocess.run(
            [str(PDFLATEX), "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )
        assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "table.pdf").stat().st_size > 1000
    return done.stdout


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.tex")), ids=lambda path: path.stem)
def test_a_table_of_the_results_compiles_and_fits_its_page(path: Path, tmp_path: Path) -> None:
    assert "Overfull" not in compiled(path.read_text(), tmp_path)


def test_every_sign_that_latex_minds_compiles(tmp_path: Path) -> None:
    signs = "".join(map(chr, range(32, 127)))
    signs += "\N{MINUS SIGN}\N{MULTIPLICATION SIGN}\N{EN DASH}±é漢\x07"
    columns = [Column("a", "Head & [b]"), Column("b", "x_1", "right", 2, signed=True)]
    rows = [(f"[{signs[:40]}", -1.5), (f"*{signs[40:]}", None)]
    table = Table("signs", f"Signs {signs}", tuple(columns), tuple(rows), (f"Note {signs}",))
    compiled(rendering.to_latex(table), tmp_path)
