"""Descriptions of the reasons that squeue gives for waiting jobs, with remedies."""

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
    "Licenses": "a license that it needs is in use",
    "PartitionDown": "the partition takes no jobs at the moment",
    "PartitionInactive": "the partition starts no jobs at the moment",
    "PartitionNodeLimit": "it requests more, or fewer, nodes than the partition allows",
    "PartitionTimeLimit": "it requests more time than the partition allows: set a shorter hardware.backend.time_min",
    "PartitionConfig": "it requests more cores, memory or GPUs than a node of the partition has",
    "BadConstraints": "no node has the requested resources",
    "AccountNotAllowed": "its account may not use the partition: hardware.backend.account",
    "InvalidAccount": "there is no such account: hardware.backend.account",
    "InvalidQOS": "there is no such quality of service",
    "QOSNotAllowed": "its quality of service is not allowed in the partition",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "it is requeued, and its earlier attempt is still being cleaned up",
    "SystemFailure": "a part of SLURM has failed",
    "launch failed requeued held": "its start failed and it was held: scontrol release gives it free",
}
"""Reason that squeue gives -> description."""

_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc)(?P<kind>Grp|Max)(?P<what>[A-Z]\w*?)(?P<each>PerUser|PerAccount|PerJob|PerNode)?(Limit)?$"
)
_OWNERS = {"QOS": "the quality of service", "Assoc": "your account"}
_SCOPES = {"PerUser": " a user", "PerAccount": " an account", "PerJob": " a job", "PerNode": " a node", None: ""}
_RESOURCES = {
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
    """Return why a job waits, as a description followed by SLURM's reason; an unknown reason is returned as it is.

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
    """Return a description of a limit of an account or of a quality of service; empty for other reasons."""
    match = _LIMIT.fullmatch(name)
    if match is None:
        return ""
    resource = _RESOURCES.get(match["what"], match["what"])
    return f"limit of {_OWNERS[match['whose']]} reached: {resource}{_SCOPES[match['each']]}"
