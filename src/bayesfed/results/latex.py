"""Tables in LaTeX, for a document that uses `booktabs`."""

from collections.abc import Iterable, Sequence

SPECIAL = {one: rf"\{one}" for one in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "α": r"$\alpha$", "<": "$<$", ">": "$>$", "−": "$-$", "★": r"$\star$", "≈": r"$\approx$",
}  # fmt: skip


def escaped(text: str) -> str:
    """Write text so that LaTeX shows it as it is."""
    return "".join(SPECIAL.get(one, one) for one in text)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], under: str) -> str:
    """Write a table with its caption, to which the line `under` it is added, columns to the left."""
    lines = [rf"\caption{{{escaped(f'{title}. {under}')}}}", rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule"]
    body = [" & ".join(map(escaped, row)) + r" \\" for row in (head, *rows)]
    ended = [*lines, body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}"]
    return "\n".join([r"\begin{table}", r"\centering", *ended, r"\end{table}"]) + "\n"
