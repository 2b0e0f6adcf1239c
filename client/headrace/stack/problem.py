"""What stops `headrace up` before or while it starts, told in one sentence."""


class StackProblem(Exception):
    """The stack cannot run. `str()` is the sentence for the user; `exit_code` is for scripts."""

    def __init__(self, sentence: str, *, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class UsageProblem(StackProblem):
    """What was asked for cannot be done as asked: a port that is taken, a folder that is not there. Exit code 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, exit_code=2)
