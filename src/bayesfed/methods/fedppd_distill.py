"""FedPPD+Distill: FedPPD's clients, and FedBE's server step for the teachers and for the students, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesfed.core.options import option
from bayesfed.methods.fedbe import Distillation, ServerOptions
from bayesfed.methods.fedppd import FedPPD
from bayesfed.methods.method import Update
from bayesfed.methods.node import GLOBAL, Node, Phase, State


class FedPPDDistill(FedPPD):
    """See `fedppd.py` and `fedbe.py`."""

    name = "fedppd_distill"
    label = "FedPPD+Distill"
    revision = 1

    @dataclass(frozen=True)
    class Options(ServerOptions, FedPPD.Options):
        """FedPPD's and, of the server, those of FedBE with the rates for CIFAR."""

        server_lr: float = option(1.5e-3, above=0)
        server_student_lr: float = option(2.5e-3, above=0)
        server_weight_decay: float = option(1e-4, low=0)

    options: Options

    def __init__(self, options: FedPPDDistill.Options) -> None:
        super().__init__(options)
        self.distillations = [
            Distillation(options, options.server_lr, "theta", GLOBAL),
            Distillation(options, options.server_student_lr, "w", "student"),
        ]

    def server_images(self) -> int:
        return self.options.server_set

    def message(self, server: Node, client: int) -> State:
        return {"theta": server["theta"], "w": server["w"]}

    def aggregate(self, server: Node, updates: Sequence[Update]) -> dict[str, Tensor]:
        before = {each.name: server[each.name].clone() for each in self.distillations}
        super().aggregate(server, updates)
        for each in self.distillations:
            each.gather(server, before[each.name], updates)
        return {}

    def server_phases(self, server: Node) -> Sequence[Phase]:
        return [phase for each in self.distillations for phase in each.phases(server)]


METHOD = FedPPDDistill
