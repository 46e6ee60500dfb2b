"""Between a notice of preemption and its deadline: the state is saved by ranks that stay, and training goes on only while that is safe."""

import math
import time
from dataclasses import dataclass, field

import torch

from iddpm_ray.parallel.collective import Group, all_gather_rows, new_gloo_group
from iddpm_ray.train.preempt import Action, Outlook, decide
from iddpm_ray.train.save import Saver
from iddpm_ray.train.session import Notice, Session


@dataclass
class Evacuation:
    """What all ranks do after a notice, in step with each other; made while everyone is alive.

    Attributes:
        deadline: by this process's monotonic clock.
        stays: ranks whose machines are not taken away; all, if all machines are. The first of them decides for everyone.
        everyone: a group of all ranks that nothing else uses.
    """

    session: Session
    saver: Saver
    notice: Notice
    deadline: float
    stays: tuple[int, ...]
    everyone: Group
    step_s: float
    may_save: bool = True
    _before: float = field(default_factory=time.monotonic)
    _stepped: bool = False

    @classmethod
    def begin(cls, notice: Notice, *, session: Session, saver: Saver, step_s: float, timeout_s: float) -> "Evacuation":
        """Puts the saves into the hands of the ranks that stay. A collective.

        Args:
            step_s: seconds that a step has taken so far.
            timeout_s: bound of every exchange.
        """
        deadline = time.monotonic() + notice.seconds_left
        stays = tuple(rank for rank in range(session.world_size) if rank not in notice.leaving) or tuple(range(session.world_size))
        everyone = new_gloo_group(timeout_s=timeout_s)
        saver.hand_over(new_gloo_group(timeout_s=timeout_s, ranks=stays), leader=stays[0], member=session.rank in stays)
        gone = f"ranks {', '.join(map(str, notice.leaving))}" if len(notice.leaving) < session.world_size else "all ranks"
        by = ", ".join(map(str, stays))
        session.say(f"preemption: the machines of {gone} go in {notice.seconds_left:.1f} s; saving at once, by ranks {by}")
        return cls(session, saver, notice, deadline, stays, everyone, step_s)

    def is_news(self, notice: Notice) -> bool:
        """Whether other machines go, or these go sooner; the same on all ranks."""
        return notice.leaving != self.notice.leaving or notice.deadline < self.notice.deadline

    def over(self, step: int, *, save: bool = False, last: bool = False) -> bool:
        """Acts after a step: saves, or not; whether to leave now. A collective.

        Args:
            step: updates completed.
            save: a save is due whatever the deadline, which may be far.
            last: there is no other step, this one only has to be saved.
        """
        now = time.monotonic()
        if self._stepped:
            self.step_s = max(0.5 * self.step_s, now - self._before)
        action = self._decide(step) if self._stepped and not (last or save) else Action.SAVE
        while action is Action.SAVE:
            self.saver.start()
            outcome = self.saver.settle()
            if outcome is not None and not outcome.committed:
                self.may_save = False  # what time is left is not enough to find out why
            action = self._decide(step)
        self._stepped, self._before = True, time.monotonic()
        return last or action is Action.LEAVE

    def _decide(self, step: int) -> Action:
        """The decision of the first rank that stays, by its clock; said in one line when it is to leave."""
        save_s = self.saver.save_s()
        mine = [
            self.deadline - time.monotonic(),
            self.step_s,
            math.nan if save_s is None else save_s,
            float(step - self.saver.committed_step),
            float(self.may_save),
        ]
        left, step_s, save, unsaved, may_save = all_gather_rows(torch.tensor(mine, dtype=torch.float64), group=self.everyone)[
            self.stays[0]
        ].tolist()
        outlook = Outlook(left, step_s, None if math.isnan(save) else save, int(unsaved), may_save=bool(may_save))
        action = decide(outlook)
        if action is Action.LEAVE:
            kept = f"step {step} is saved" if int(unsaved) == 0 else f"{int(unsaved)} steps since the last save are lost"
            self.session.say(
                f"preemption: leaving after step {step}, {left:.1f} s before the deadline "
                f"(a step takes {step_s:.2f} s, a save {'?' if math.isnan(save) else f'{save:.2f}'} s); {kept}"
            )
        return action
