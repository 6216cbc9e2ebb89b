"""What a panel does while it measures: in the background, so that the kernel stays free, until Cancel."""

from __future__ import annotations

import threading
from typing import Any


class Background:
    """For a widget with the traits `busy` and `status`, a `_begin` that sets busy, and a `_measure` that ends it."""

    _cancel: threading.Event
    _thread: threading.Thread | None
    busy: bool
    status: str

    def press_run(self) -> None:
        """What the Run button does."""
        if not self.busy:
            self._begin()
            self._thread = threading.Thread(target=self._measure, daemon=True)
            self._thread.start()

    def press_cancel(self) -> None:
        """What the Cancel button does."""
        if self.busy:
            self.status = "Cancelling …"
            self._cancel.set()

    def _wait(self, sentence: str) -> None:
        """Wait for what goes on, after printing `sentence`; interrupting the kernel cancels it."""
        if self.busy and self._thread:
            print(sentence)
            try:
                self._thread.join()
            except KeyboardInterrupt:
                self.press_cancel()
                self._thread.join()

    def _begin(self) -> None:
        raise NotImplementedError

    def _measure(self) -> Any:
        raise NotImplementedError
