"""What a call of `bayesfed compare` should say before its numbers: options that nobody has chosen, and seeds left out."""

from __future__ import annotations

import dataclasses

from bayesfed.plan.asked import Asked
from bayesfed.plan.compared import FIRST, Planned, Request
from bayesfed.results.statements import listed

REMEDY = "give values to choose from, as in fedavg:lr=0.03/0.1/0.3"
UNTUNED = (
    "Methods run with their default options here, which nobody has tuned on this dataset: a difference may be one of learning "
    f"rates. For yours and those that you compare it with {REMEDY}"
)


def notice(planned: Planned) -> str:
    """Say whose options nobody has chosen, and which seeds are left out; "" for neither."""
    request, told = planned.request, list[str]()
    if untuned(request):
        told.append(UNTUNED)
    if others := tuned_for(request):
        told.append(f"The options of the comparison's methods were chosen for {others}, not for this network")
    if names := listed(by_default(request)):
        told.append(f"{names}: with default options, where the others' are chosen from six or more; {REMEDY}")
    for ground, seeds in planned.stored.items():
        if len(seeds) < request.seeds:
            number = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {listed([str(seed) for seed in seeds])}"
            told.append(f"{ground}: most methods have records of {number} alone, so yours are compared on these")
    return ". ".join(told)


def tuned(request: Request) -> list[str]:
    """List the methods whose options were searched on the dataset of a ground of one's own."""
    every = [rule["where"] for rule in request.paper["given"]]
    return [where["method"] for where in every if "method" in where and where.get("dataset") == request.dataset]


def untuned(request: Request) -> bool:
    """Return True on a ground of one's own whose dataset has no searches: its methods have their defaults."""
    return request.dataset is not None and not tuned(request)


def tuned_for(request: Request) -> str:
    """Name the networks that the searches on a dataset were for, where that of one's own ground is another; else ""."""
    if request.dataset is None or untuned(request):
        return ""
    of_dataset = [axes for axes in map(request.axes, request.known) if request.dataset in axes["dataset"]]
    searched = {model for axes in of_dataset for model in axes["models.global"]}
    (model,) = request.own_ground[1]["axes"]["models.global"]
    return "" if model in searched else listed(sorted(searched))


def by_default(request: Request) -> list[str]:
    """List the methods of a call whose learning rate nobody gives, on data where the others' are searched."""
    if untuned(request):
        return []
    asked = {request.named[text][0]: Asked.read(text) for text in request.methods}
    left = [label for label, one in asked.items() if not one.choices and (not one.options or keeps_rate(one))]
    if request.dataset:
        return [label for label in left if label not in tuned(request)]
    searched = [request.axes(ground)["method"] for ground in request.grounds or (FIRST,)]
    return [label for label in left if not all(label in labels for labels in searched)]


def keeps_rate(one: Asked) -> bool:
    """Return whether a method has an option `lr` that the call does not give."""
    from bayesfed import methods

    options = {option.name for option in dataclasses.fields(methods.get(one.name).Options)}
    return "lr" in options and "lr" not in one.options
