"""Why a SLURM job waits: the reasons that squeue gives, in words, with what can be done."""

from __future__ import annotations

import re

REASONS = {
    "Resources": "next in line, as soon as nodes are free",
    "Priority": "jobs with a higher priority come first",
    "Dependency": "a job that it needs has not ended",
    "DependencyNeverSatisfied": "a job that it needs has failed, so it never starts: cancel it",
    "BeginTime": "it may not start yet; a requeued job waits two minutes",
    "JobArrayTaskLimit": "as many jobs of this sweep run as hardware.parallel allows",
    "JobHeldUser": "held by its user: scontrol release gives it free",
    "JobHeldAdmin": "held by an administrator",
    "ReqNodeNotAvail": "nodes that it could use are down, reserved, or reserved before its time limit ends",
    "Reservation": "its reservation has not begun",
    "Licenses": "a licence that it needs is taken",
    "PartitionDown": "the partition takes no jobs at the moment",
    "PartitionInactive": "the partition starts no jobs at the moment",
    "PartitionNodeLimit": "it asks for more, or fewer, nodes than the partition gives",
    "PartitionTimeLimit": "it asks for more time than the partition gives: a shorter hardware.backend.time_min",
    "PartitionConfig": "it asks for more cores, memory or GPUs than a node of the partition has",
    "BadConstraints": "no node has what it asks for",
    "AccountNotAllowed": "its account may not use the partition: hardware.backend.account",
    "InvalidAccount": "there is no such account: hardware.backend.account",
    "InvalidQOS": "there is no such quality of service",
    "QOSNotAllowed": "its quality of service is not allowed in the partition",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "it is requeued, and still being cleaned up after",
    "SystemFailure": "a part of SLURM has failed",
    "launch failed requeued held": "its start failed and it was held: scontrol release gives it free",
}
"""SLURM's words and ours."""

_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc)(?P<kind>Grp|Max)(?P<what>[A-Z]\w*?)(?P<each>PerUser|PerAccount|PerJob|PerNode)?(Limit)?$"
)
_WHOSE = {"QOS": "the quality of service", "Assoc": "your account"}
_EACH = {"PerUser": " a user", "PerAccount": " an account", "PerJob": " a job", "PerNode": " a node", None: ""}
_WHAT = {
    "Jobs": "running jobs",
    "SubmitJobs": "submitted jobs",
    "SubmitJob": "submitted jobs",
    "Cpu": "cores",
    "CPU": "cores",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "GRES": "GPUs",
    "WallDuration": "time",
    "Wall": "time",
    "CpuMinutes": "core minutes",
    "CPUMinutes": "core minutes",
}


def in_words(reason: str) -> str:
    """Return why a job waits, in words and as SLURM says it; a reason without words here stays as it is.

    >>> in_words("Priority")
    'jobs with a higher priority come first (Priority)'
    >>> in_words("QOSMaxJobsPerUserLimit")
    'limit of the quality of service reached: running jobs a user (QOSMaxJobsPerUserLimit)'
    >>> in_words("None"), in_words("Mystery")
    ('', 'Mystery')
    """
    reason = reason.strip().strip("()")
    if reason in ("", "None"):
        return ""
    name = reason if reason in REASONS else reason.partition(",")[0].strip()
    words = REASONS.get(name) or _limit(name)
    return f"{words} ({reason})" if words else reason


def _limit(name: str) -> str:
    """What a limit of an account or of a quality of service is about; empty where it is none."""
    found = _LIMIT.fullmatch(name)
    if found is None:
        return ""
    what = _WHAT.get(found["what"], found["what"])
    return f"limit of {_WHOSE[found['whose']]} reached: {what}{_EACH[found['each']]}"
