"""Errors a user can act on: what is wrong, with which value, and what would do."""


class UserError(Exception):
    """One clear sentence for a person; survives pickling between processes.

    Args:
        what: the thing at fault, named as the user knows it (a field, a path, a rank).
        value: the offending value, shown as text when given.
        fix: what would do instead.
    """

    def __init__(self, what: str, *, value: object = None, fix: str = "") -> None:
        self.what = what
        self.value = None if value is None else str(value)
        self.fix = fix
        message = what if self.value is None else f"{what} (got {self.value})"
        super().__init__(f"{message}: {fix}" if fix else message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.value, self.fix))


def _rebuild(kind: type[UserError], what: str, value: str | None, fix: str) -> UserError:
    return kind(what, value=value, fix=fix)


class SpecError(UserError):
    """A job spec that cannot run: unknown key, impossible value, fields that contradict each other."""


class DataError(UserError):
    """A data set or picture that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or of another run."""


class TrainError(UserError):
    """A run that cannot go on: non-finite steps in a row, ranks that disagree."""
