"""What a notebook shows when the lab cannot do what it was asked: one sentence, no traceback."""


class LabError(ValueError):
    """A mistake that a person can mend, told in one sentence.

    It is an exception, so a test run of the notebook fails; IPython shows `_render_traceback_` instead of
    frames of ours that say nothing to the reader.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
