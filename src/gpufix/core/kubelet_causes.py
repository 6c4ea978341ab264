"""Why the kubelet is down, or runs and does not do its work. Pure."""

from __future__ import annotations

from gpufix.core.evidence import condition_of, ready_of, unit_lines
from gpufix.core.findings import Candidate, candidate, unknown
from gpufix.core.signatures import Hit
from gpufix.core.situation import Kubelet, Situation
from gpufix.language import mark, t
from gpufix.model import Evidence, StartFacts, Status, SwapDevice

_SURE_ROW = 2
"""So many starts in a row with the same last words make a crash loop of the one that is under way."""


def why_down(situation: Situation) -> Candidate | None:
    """The cause when the kubelet is down, or about to go down again; None when it is not."""
    if situation.kubelet in (Kubelet.RUNNING, Kubelet.UNKNOWN):
        return None
    start = situation.worded
    if situation.kubelet is Kubelet.STARTING and start is None and not situation.silent:
        return None  # nothing failed before it
    if start is None or start.fatal is None:
        return _without_words(situation)
    hit = situation.signatures.match("fatal", [start.fatal], start.lines, situation.holds)
    if hit is not None and hit.signature.id == "swap-on":
        return _refused_swap(situation, start.fatal)
    if hit is not None:
        return _by_signature(situation, start, hit)
    summary = t(
        "the kubelet's last start ended with an error that is none of the known ones ({line})", line=start.fatal.source
    )
    return unknown(summary, start.fatal, *unit_lines(situation.facts))


# --- swap ------------------------------------------------------------------------------------------------------------


def _refused_swap(situation: Situation, refusal: Evidence) -> Candidate:
    facts, state = situation.facts, unit_lines(situation.facts)
    if facts.swaps.value is None:
        summary = t(
            "the kubelet's last start was refused for swap; whether swap is on now is not known: {reason}",
            reason=facts.swaps.unknown,
        )
        return candidate("swap-on", Status.SUSPECTED, summary, refusal)
    if not facts.swaps.value:
        return _refusal_is_over(situation, refusal)
    devices = ", ".join(device.path for device in facts.swaps.value)
    evidence = (refusal, *swap_lines(situation), *facts.swap_allowed.evidence, *state)
    if facts.swap_allowed.value is True:
        summary = t(
            "the kubelet's last start was refused for swap, {devices} is on, and yet its configuration now allows it",
            devices=devices,
        )
        return candidate("swap-on", Status.SUSPECTED, summary, *evidence)
    if not situation.same_exit:
        summary = t(
            "the last start that left words was refused for swap and {devices} is on, but later ones ended otherwise",
            devices=devices,
        )
        return candidate("swap-on", Status.SUSPECTED, summary, *evidence)
    summary = t("swap is on ({devices}) and the kubelet refuses to start with it", devices=devices)
    if situation.kubelet is Kubelet.STOPPED:
        summary = t(
            "the kubelet's last start was refused for swap, {devices} is still on, and the unit is stopped now",
            devices=devices,
        )
    elif situation.silent:
        summary = t(
            "swap is on ({devices}) and the kubelet refuses to start with it; "
            "the last {n} starts failed without a word",
            devices=devices,
            n=situation.silent,
        )
    return candidate("swap-on", Status.CONFIRMED, summary, *evidence)


def _refusal_is_over(situation: Situation, refusal: Evidence) -> Candidate:
    """Swap is off now: what refused the last start is gone, and the kubelet has not come back yet."""
    facts, state = situation.facts, unit_lines(situation.facts)
    off = swap_lines(situation)
    if situation.kubelet in (Kubelet.STOPPED, Kubelet.FAILED) and facts.unit.known:
        if situation.kubelet is Kubelet.STOPPED:
            summary = t(
                "the kubelet is stopped; its last start was refused for swap, swap is off since, "
                "and it only needs starting"
            )
        else:
            summary = t(
                "the kubelet has failed and is not started again; its last start was refused for swap, "
                "swap is off since, and it only needs starting"
            )
        return candidate("kubelet-stopped", Status.CONFIRMED, summary, *state, refusal, *off)
    summary = t(
        "the kubelet's last start was refused for swap; swap is off now, and whether it comes back is still to be seen"
    )
    return unknown(summary, refusal, *off, *state)


def swap_lines(situation: Situation) -> tuple[Evidence, ...]:
    """The lines of /proc/swaps that say what is on; the header alone when nothing is."""
    lines = situation.facts.swaps.evidence
    return lines[1:] if len(lines) > 1 else lines


def swap_is_on(situation: Situation) -> tuple[SwapDevice, ...]:
    return situation.facts.swaps.value or ()


# --- other last words ------------------------------------------------------------------------------------------------


def _by_signature(situation: Situation, start: StartFacts, hit: Hit) -> Candidate:
    status = hit.status
    summary = _ended_by(hit, situation)
    if not situation.same_exit:
        status = Status.SUSPECTED
    if situation.kubelet is Kubelet.STOPPED:
        status = Status.SUSPECTED
        summary = t("{said}; the unit is stopped now, and whether the obstacle still stands is not known", said=summary)
    if situation.kubelet is Kubelet.STARTING and _row(situation, hit.signature.id) < _SURE_ROW:
        status, summary = Status.SUSPECTED, t("{said}; another start is under way", said=summary)
    if situation.ready and not situation.facts.unit.known:
        status = Status.SUSPECTED
    return candidate(hit.signature.id, status, summary, *hit.evidence, *unit_lines(situation.facts))


def _ended_by(hit: Hit, situation: Situation) -> str:
    """``same_exit`` can only be untrue of silent starts."""
    says = t(hit.signature.says) + _named(hit)
    if not situation.silent:
        return t("{says}; that ended its last start", says=says)
    if situation.same_exit:
        return t(
            "{says}; that ended its last start that left words, {n} silent ones followed", says=says, n=situation.silent
        )
    return t(
        "{says}; that ended its last start that left words, {n} silent ones followed with another exit status",
        says=says,
        n=situation.silent,
    )


def _named(hit: Hit) -> str:
    caught = next((hit.groups[name] for name in ("flag", "short", "other", "port") if name in hit.groups), "")
    return f" ({caught})" if caught else ""


def _row(situation: Situation, id: str) -> int:
    """How many of the newest ended starts, one after the other, ended with words of this signature."""
    count = 0
    for start in reversed([start for start in situation.starts if start.ended]):
        if start.fatal is None:
            continue
        hit = situation.signatures.match("fatal", [start.fatal], start.lines, situation.holds)
        if hit is None or hit.signature.id != id:
            break
        count += 1
    return count


def _without_words(situation: Situation) -> Candidate:
    """The kubelet is down and no line says why."""
    facts, unit, state = situation.facts, situation.unit, unit_lines(situation.facts)
    results = unit_lines(facts, "Result")
    if situation.kubelet is Kubelet.STOPPED:
        return _stopped(situation)
    if situation.kubelet is Kubelet.STARTING:
        return unknown(t("the kubelet is just starting, and what ended its start before left no words"), *state)
    looping = situation.kubelet is Kubelet.CRASH_LOOP
    why = t("its journal holds no reason")
    if not facts.journal.known:
        why = t("the journal was not read: {reason}", reason=facts.journal.unknown)
    if swap_is_on(situation) and facts.swap_allowed.value is not True:
        devices = ", ".join(device.path for device in swap_is_on(situation))
        words = (
            mark(
                "the kubelet is in a crash loop and swap is on ({devices}), "
                "which it does not allow as far as is known; {why}"
            )
            if looping
            else mark(
                "the kubelet has failed and swap is on ({devices}), which it does not allow as far as is known; {why}"
            )
        )
        summary = t(words, devices=devices, why=why)
        return candidate("swap-on", Status.SUSPECTED, summary, *swap_lines(situation), *state)
    result = f" (Result={unit.result})" if unit is not None and unit.result else ""
    words = mark("the kubelet is in a crash loop{result}; {why}")
    words = words if looping else mark("the kubelet has failed{result}; {why}")
    return unknown(t(words, result=result, why=why), *state, *results)


def _stopped(situation: Situation) -> Candidate:
    facts, unit = situation.facts, situation.unit
    evidence = unit_lines(facts, "ActiveState", "SubState", "UnitFileState", "Result", "LoadState")
    if unit is None:
        last = situation.starts[-1].lines[-1:] if situation.starts else ()
        return candidate("kubelet-stopped", Status.SUSPECTED, t("the journal ends with a stop of the kubelet"), *last)
    disabled = unit.unit_file_state in ("disabled", "masked") or unit.load_state == "masked"
    summary = t("the kubelet is not running: its unit is {state}", state=unit.active_state)
    if disabled and unit.unit_file_state:
        summary = t(
            "the kubelet is not running: its unit is {state} and {unit_file_state}",
            state=unit.active_state,
            unit_file_state=unit.unit_file_state,
        )
    if not facts.journal.known:
        summary = t("{said}; why it stopped is not known: {reason}", said=summary, reason=facts.journal.unknown)
        return candidate("kubelet-stopped", Status.SUSPECTED, summary, *evidence)
    failed = situation.starts and situation.starts[-1].how == "failure"
    if failed or unit.result not in ("", "success"):
        summary = t(
            "{said} (Result={result}), and its last start failed without a word", said=summary, result=unit.result
        )
        return candidate("kubelet-stopped", Status.SUSPECTED, summary, *evidence)
    summary = t("{said}; nothing in its journal says that it failed", said=summary)
    return candidate("kubelet-stopped", Status.CONFIRMED, summary, *evidence)


# --- a kubelet that runs, on a node that is not Ready ----------------------------------------------------------------


def why_not_ready(situation: Situation) -> Candidate | None:
    """The cause when the kubelet runs and the node is not Ready, or under disk pressure; None when neither is so."""
    node = situation.node
    if node is None or not situation.holds:
        return None
    context = situation.starts[-1].lines if situation.starts else ()
    running = situation.kubelet in (Kubelet.RUNNING, Kubelet.STARTING)
    hit = situation.signatures.match("running", situation.recent_lines, context, situation.holds) if running else None
    if hit is not None:
        summary = _with_identities(hit)
        return candidate(
            hit.signature.id, hit.status, summary, *hit.evidence, ready_of(node), *unit_lines(situation.facts)
        )
    if "not-ready" not in situation.holds:
        return None
    ready = ready_of(node)
    message = Evidence(ready.source, node.ready_message)
    hit = situation.signatures.match("ready-message", [message], context, situation.holds)
    if hit is not None:
        return candidate(hit.signature.id, hit.status, f"{t(hit.signature.says)}: {node.ready_message}", ready)
    if "disk-pressure" in situation.holds:
        pressure = condition_of(node, "DiskPressure")
        summary = t("the node is not Ready, and under disk pressure")
        return candidate("disk-full", Status.SUSPECTED, summary, ready, pressure)
    if not running:
        return None
    words = mark("the kubelet is starting, yet the node is not Ready ({reason}): {message}")
    if situation.kubelet is Kubelet.RUNNING:
        words = mark("the kubelet runs, yet the node is not Ready ({reason}): {message}")
    summary = t(words, reason=node.ready_reason or node.ready, message=node.ready_message)
    return unknown(summary, ready, *unit_lines(situation.facts))


def _with_identities(hit: Hit) -> str:
    says, asked, identity = t(hit.signature.says), hit.groups.get("asked"), hit.groups.get("identity")
    if not asked or not identity:
        return says
    return t(
        "{says}: it asks for {asked}, its certificate is for {identity}", says=says, asked=asked, identity=identity
    )


# --- what was considered and put aside -------------------------------------------------------------------------------


def swap_warnings(situation: Situation, cause: str) -> list[str]:
    """What swap will do at the kubelet's next start, where it is not the cause now."""
    facts = situation.facts
    if cause == "swap-on":
        return []
    if not facts.swaps.known:
        if situation.kubelet is not Kubelet.RUNNING:
            return []
        words = mark("whether swap is on is not known ({reason}): the kubelet's next start may be refused")
        return [t(words, reason=facts.swaps.unknown)]
    devices = ", ".join(device.path for device in swap_is_on(situation))
    if not devices or facts.swap_allowed.value is True:
        return []
    if facts.swap_allowed.value is None:
        words = mark("swap is on ({devices}), and whether the kubelet's configuration allows it is not known")
    elif situation.kubelet is Kubelet.RUNNING:
        words = mark("latent: swap is on ({devices}) and not allowed; the kubelet's next restart will be refused")
    else:
        words = mark("swap is on too ({devices}) and not allowed: the kubelet's next start would be refused")
    return [t(words, devices=devices)]


def unit_warnings(situation: Situation) -> list[str]:
    """What systemd will, or will not, do at the next boot."""
    unit = situation.unit
    if unit is None:
        return []
    if unit.load_state in ("not-found", "error", "bad-setting"):
        words = mark("systemd knows no usable unit {unit} ({state}): is it the kubelet's?")
        return [t(words, unit=unit.name, state=unit.load_state)]
    if unit.unit_file_state in ("disabled", "masked"):
        words = mark("{unit} is {state}: it will not start at the next boot")
        return [t(words, unit=unit.name, state=unit.unit_file_state)]
    return []
