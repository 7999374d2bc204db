"""What figures were measured on: hardware, versions, threads, data type, command. It stands under every table."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seqckpt.memory.device_memory import free_bytes
from seqckpt.units import format_bytes

__all__ = ["default_device", "describe_hardware", "free_memory", "read_hardware"]


def default_device() -> str:
    """The device that cases measure on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def free_memory(device: str) -> int:
    """Bytes that can still be had on the device."""
    return free_bytes(torch.device(device))


def read_hardware(command: Sequence[str], *, dtype: str = "float32") -> dict[str, Any]:
    """Collect what a reader needs to place a figure, as plain data."""
    device = default_device()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "dtype": dtype,
        "command": shlex.join(command),
    }


def describe_hardware(record: dict[str, Any]) -> str:
    """Write that in one line of Markdown, the command at its end."""
    memory = f", {format_bytes(record['memory_bytes'])}" if record["memory_bytes"] else ""
    device = "" if record["device"] == "CPU" else f"{record['device']}; "
    return (
        f"{device}{record['processor']}, {record['num_cores']} cores{memory}, {record['system']}; torch "
        f"{record['torch']}, {record['num_threads']} threads, {record['dtype']}, Python {record['python']}; "
        f"`{record['command']}`"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
