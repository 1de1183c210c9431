"""What stands under a table: how to read it, and everything in it that is not as planned."""

from __future__ import annotations

from clipnoise.report.formats import count, listing
from clipnoise.report.statistics import ALPHA
from clipnoise.report.tables import NOMINAL, ORACLE, REPLACE, Cell, Table

TEST = f"two-sided paired t-test over seeds, Holm-corrected, α = {ALPHA}"


def table_notes(table: Table) -> list[str]:
    """Return the notes under a table, one sentence or two each."""
    cells = [cell for _, _, cell in table.cells()]
    if not cells:
        return ["No run is planned for this panel."]
    notes = [_cells(table, cells), _bold(table), _unfinished(cells), _references(table)]
    return [note for note in [*notes, *mark_notes(cells)] if note]


def _cells(table: Table, cells: list[Cell]) -> str:
    planned = sorted({cell.sample.planned for cell in cells})
    name = table.metric.heading
    if planned == [1]:
        return f"{name}: one seed, so no deviation can be given."
    seeds = str(planned[0]) if len(planned) == 1 else f"{planned[0]} to {planned[-1]}"
    return f"{name}: mean ± sample standard deviation over {seeds} seeds."


def _bold(table: Table) -> str:
    if any(verdict.leaders for verdict in table.verdicts.values()):
        note = f"Bold: the best of a column and all not significantly worse ({TEST})."
    else:
        note = ""
    reasons = {verdict.withheld for verdict in table.verdicts.values()}
    if "unfinished" in reasons:
        note += " A column has no bold until its missing runs are there."
    if "one seed" in reasons:
        note += " No bold with one seed: nothing can be tested."
    if "failed" in reasons:
        note += " A column in which no method completed all its runs has no bold."
    return note.strip()


def _unfinished(cells: list[Cell]) -> str:
    samples = [cell.sample for cell in cells]
    diverged = sum(one.diverged for one in samples)
    missing = sum(one.missing for one in samples)
    corrupt = sum(one.corrupt for one in samples)
    said = [
        f"{count(diverged, 'run')} diverged" if diverged else "",
        f"{count(missing, 'run')} {'is' if missing == 1 else 'are'} missing" if missing else "",
        f"{count(corrupt, 'result')} {'is' if corrupt == 1 else 'are'} damaged" if corrupt else "",
    ]
    said = [words for words in said if words]
    if not said:
        return ""
    return (
        f"n/N: n of N planned runs completed ({listing(said)}). "
        "The mean is over those n alone, so it is never bold."
    )


def _references(table: Table) -> str:
    if not table.references:
        return ""
    return "Non-private references have no ε and do not compete."


def mark_notes(cells: list[Cell]) -> list[str]:
    """Return the notes that say what the marks beside cells mean."""
    signs = "".join(cell.mark for cell in cells)
    adjacencies = {cell.adjacency for cell in cells if REPLACE in cell.mark}
    notes = []
    if NOMINAL in signs:
        notes.append(
            f"{NOMINAL} nominal ε: the accountant's analysis does not cover the way batches were "
            "drawn under this adjacency, or what one example can change, so ε is no guarantee; not "
            "compared with the others."
        )
    if ORACLE in signs:
        notes.append(
            f"{ORACLE} non-private: it adds the noise of its column but reads unprotected values "
            "too, so it has no ε; not compared with the others."
        )
    if REPLACE in signs:
        notes.append(
            f"{REPLACE} ε under {listing(sorted(adjacencies))} adjacency: not comparable with "
            "ε under add-remove adjacency."
        )
    return notes
