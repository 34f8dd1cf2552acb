"""Tables in LaTeX, for a document that uses `booktabs`."""

from collections.abc import Iterable, Sequence

SPECIAL = {one: rf"\{one}" for one in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "α": r"$\alpha$", "<": "$<$", ">": "$>$", "−": "$-$", "★": r"$\star$", "≈": r"$\approx$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$",
}  # fmt: skip


def escaped(text: str) -> str:
    """Write text so that LaTeX shows it as it is."""
    return "".join(SPECIAL.get(one, one) for one in text)


def tabular(heads: Sequence[Sequence[str]], rows: Iterable[Sequence[str]], columns: int) -> list[str]:
    """Write the lines of a table whose cells are LaTeX, columns to the left; `heads`: lines of titles."""
    of_heads, of_rows = ([" & ".join(row) + r" \\" for row in part] for part in (heads, rows))
    lines = [rf"\begin{{tabular}}{{{'l' * columns}}}", r"\toprule", *of_heads, r"\midrule", *of_rows]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], under: str) -> str:
    """Write a table with its caption, to which the line `under` it is added."""
    titles, *body = [[*map(escaped, row)] for row in (head, *rows)]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(f'{title}. {under}')}}}"]
    return "\n".join([*lines, *tabular([titles], body, len(head)), r"\end{table}"]) + "\n"
