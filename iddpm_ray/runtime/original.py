"""The exception that a program raised, out of what Ray wrapped around it."""


def original(failure: BaseException) -> BaseException:
    """The innermost exception."""
    while True:
        inner = getattr(failure, "_base_exc", None) or getattr(failure, "cause", None)
        if not isinstance(inner, BaseException) or inner is failure:
            return failure
        failure = inner
