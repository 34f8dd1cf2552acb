"""The templates of pages."""

import jinja2


def templates() -> jinja2.Environment:
    """Return the environment of the page's templates; whatever a value holds is shown as text."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("bayesfed.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
