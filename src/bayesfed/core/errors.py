"""The error of a user's mistake, the hint that names what would be right, and what is said of a machine's faults."""

import difflib
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path

LONGEST = 4000  # characters of an error's line
OWN = "bayesfed_plugin_"  # begins the name of every module that is a user's own plugin


class InputError(Exception):
    """Input that is refused before any work; the command line prints its one line and exits with 2.

    The line stays one whatever the input holds: characters that do not print are written as Python writes them, and of a
    very long one the middle is left out.
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


class RunStopped(Exception):
    """A function of the user's own stopped a run (`on_round`); finished rounds are in its checkpoint."""


class UnfitImages(InputError):
    """A network that failed at images as one does that is made for others: they could be prepared."""


def in_a_line(error: BaseException) -> tuple[str, int] | None:
    """Return one line about what ended a command, and its exit code: refused input, a file where a folder is needed, a
    fault of the machine (a full disk, memory that ran out), or of a user's own plugin, whose traceback is shown before.

    None for any other error, which is ours and wants its traceback.
    """
    again = "what is finished is kept; start the same command again once that is mended"
    if isinstance(error, InputError | RunStopped):
        return str(error), 2 if isinstance(error, InputError) else 1
    if isinstance(error, SystemExit) and not in_own_part(error):
        return None  # a command's own last line
    if out_of_memory(error):
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "allocation failed"
        return f"memory ran out ({reason[:200]}); {again}, with fewer jobs at once", 1
    if "busy or unavailable" in str(error):  # CUDA's words; under MPS for a job too many
        return (
            f"the GPU takes no further process ({str(error).splitlines()[0][:200]}); {again}, with fewer jobs at once",
            1,
        )
    if place := in_own_part(error):
        traceback.print_exception(error)
        return f"{place}: {words(error)}", 1
    if isinstance(error, NotADirectoryError | FileExistsError) and (file := file_on(Path(error.filename or ""))):
        return f"{file}: this is a file, and a folder is needed; give another path", 2
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; {again}", 1
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("bayesfed"):
        return f"this command needs '{error.name}'; it comes with `make setup`, or bayesfed[all]", 1
    return None


def of_machine(error: BaseException) -> bool:
    """Return whether a run may go on where the error came: not after refused input or a fault of a user's own plugin,
    whose repair makes it another run."""
    return out_of_memory(error) or not (isinstance(error, InputError | RunStopped) or in_own_part(error))


def in_own_part(error: BaseException) -> str | None:
    """Return the file and the innermost line of a user's own plugin that an error went through."""
    frames = [
        (Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(OWN)
    ]
    if not frames:
        return None
    (file, line), here = frames[-1], Path.cwd()
    return f"{file.relative_to(here) if file.is_relative_to(here) else file}, line {line}"


def words(error: BaseException) -> str:
    """Return an error's type, and the first line of what it says."""
    text = error.msg if isinstance(error, SyntaxError) else str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def file_on(path: Path) -> Path | None:
    """Return the file that a path leads to, or through, as if it were a folder."""
    return next((one for one in (path, *path.parents) if one.is_file()), None)


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, of the machine or of its GPU: no fault of whosever code was running."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def nearest(value: object, valid: Iterable[object]) -> str:
    """Return the words that end an error on a wrong name: the closest of `valid`, or all of them.

    A part of a dotted name stands for it: `alpha` for the first of `partition.alpha`, `method.alpha`.
    """
    names = list(dict.fromkeys(map(str, valid)))
    begun = [name for name in names if name.startswith(f"{value}_")]
    if len(begun) > 1:
        return f"did you mean one of {', '.join(sorted(begun))}?"
    small = {name.lower(): name for name in sorted(names)}
    for name in names:
        for part in name.lower().split("."):
            small.setdefault(part, name)
    close = difflib.get_close_matches(str(value).lower(), small, n=1)
    if close:
        return f"did you mean '{small[close[0]]}'?"
    return f"valid: {', '.join(sorted(names))}" if names else "there are none"


# Keys of other libraries and of a run file's blocks, and what they are in a run file.
ELSEWHERE = {
    "clients": "partition.clients",
    "num_clients": "partition.clients",
    "num_rounds": "rounds",
    "fraction_fit": "participation",
    "lr": "method.lr",
    "learning_rate": "method.lr",
    "optimizer": "method.optimizer",
}


def nearest_key(key: object, valid: Collection[str]) -> str:
    """Return the words that end an error on a wrong key at the top of a run file: where it belongs, or as `nearest`."""
    place = ELSEWHERE.get(str(key), "")
    return f"give `{place}`" if place.partition(".")[0] in valid else nearest(key, valid)
