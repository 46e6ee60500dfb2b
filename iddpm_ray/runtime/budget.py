"""How often a run is tried again: what ended an attempt is charged to whom, and when to give up. Pure."""

from dataclasses import dataclass
from typing import Literal

Why = Literal["finished", "stopped", "preempted", "grown", "lost", "hung", "failed", "refused"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


@dataclass(frozen=True)
class Verdict:
    """What follows an attempt.

    Attributes:
        again: whether there is another.
        pause_s: before it.
        account: where the budgets stand, in words; what gave out, if there is no other.
    """

    again: bool
    pause_s: float = 0.0
    account: str = ""


@dataclass
class Budget:
    """The accounts of one start of a run; failures of the program and losses of machines are counted apart.

    Attributes:
        failures: attempts that the program itself ended, hangs included.
        fruitless: attempts in a row that failed or lost a machine and left no new checkpoint.
        waits: attempts in a row that found no room.
    """

    max_failures: int
    max_fruitless: int
    failures: int = 0
    fruitless: int = 0
    lost: int = 0
    preempted: int = 0
    waits: int = 0

    def after(self, why: Why, *, progressed: bool, crowded: bool = False) -> Verdict:
        """Books an attempt that did not end the run.

        Args:
            progressed: whether it left a newer checkpoint than it began from.
            crowded: a run that has checkpoints found no room: it waits, as long as it takes.
        """
        if crowded:
            self.waits += 1
            return Verdict(again=True, pause_s=min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self.waits), account="no failure of the program")
        self.waits = 0
        if why in ("preempted", "grown"):
            self.preempted += why == "preempted"
            return Verdict(again=True, pause_s=0.0 if progressed or why == "grown" else _FIRST_PAUSE_S)
        self.fruitless = 0 if progressed else self.fruitless + 1
        if why == "lost":
            self.lost += 1
        else:
            self.failures += 1
        if self.failures > self.max_failures:
            return Verdict(again=False, account=f"attempts that failed: {self.failures} (cluster.max_failures {self.max_failures})")
        if self.fruitless > self.max_fruitless:
            account = f"attempts in a row without a new checkpoint: {self.fruitless} (cluster.max_fruitless {self.max_fruitless})"
            return Verdict(again=False, account=account)
        # The first return is quick; what keeps failing is given ever more time.
        tries = self.fruitless if not progressed else 1
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (tries - 1)) if tries > 1 else 0.0
        if why == "lost":
            return Verdict(again=True, pause_s=pause, account="no failure of the program")
        return Verdict(again=True, pause_s=pause, account=f"{self.failures} of {self.max_failures} failures allowed")
