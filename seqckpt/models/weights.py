"""Weights for an encoder: torchvision's own by download, or a `state_dict` from a file, checked key by key."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, hub, nn

from seqckpt.errors import UsageError

__all__ = ["load_weights"]

# The head of a torchvision network; what of it an encoder keeps is not dropped.
_CLASSIFIER = re.compile(r"^(fc|head|classifier)(\.|$)")
# torchvision's files for DenseNet have these keys with one dot more than its modules.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)$")


def load_weights(encoder: nn.Module, name: str, weights: str, *, default: Any) -> None:
    """Load `weights`, "DEFAULT" or the path of a file, into an encoder built by name.

    `default` is torchvision's enumeration of weights for that name, or None where none are published. Keys of the
    classification layer are dropped; any other key too many or too few, and any other shape, is a UsageError that
    lists them. Only tensors are read from a file (`weights_only=True`).
    """
    if weights == "DEFAULT":
        if default is None:
            raise UsageError(f"no weights are published for encoder {name!r}: give weights=null or the path of a file")
        source, state = default.DEFAULT.url, _download(name, default.DEFAULT.url)
    else:
        source, state = weights, _read(name, Path(weights).expanduser())
    _check_and_load(encoder, state, f"the weights in {source} do not fit encoder {name!r}")


def _download(name: str, url: str) -> Mapping[str, Tensor]:
    target = Path(hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            hub.download_url_to_file(url, str(target), hash_prefix=_hash_in(target.name), progress=True)
    except (OSError, RuntimeError) as error:  # no network, no place to write, or another file than expected
        raise UsageError(
            f"weights=DEFAULT for encoder {name!r} could not be downloaded ({error}). Fetch {url} on a machine with "
            f"network, and either put the file at {target} or give its path as `weights`: "
            f"on the command line, model.weights=path/to/{target.name}"
        ) from error
    return _read(name, target)


def _hash_in(file_name: str) -> str | None:
    match = hub.HASH_REGEX.search(file_name)
    return match[1] if match else None


def _read(name: str, path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise UsageError(
            f"weights for encoder {name!r}: there is no file {path}. Expected null, DEFAULT, or the path of a file "
            "that holds a state_dict"
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(
            f"weights for encoder {name!r}: {path} cannot be read as a state_dict ({reason}). If it is damaged, fetch "
            "it again; if it holds more than tensors, save model.state_dict() instead"
        ) from error
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(
            f"weights for encoder {name!r}: {path} holds {_describe(state)}, but a state_dict was expected: "
            "a mapping from parameter names to tensors"
        )
    return {_OLD_DENSENET.sub(r"\1\2", key): value for key, value in state.items()}


def _describe(state: object) -> str:
    if isinstance(state, Mapping):
        return f"a mapping with the keys {', '.join(map(str, list(state)[:5])) or '(none)'}"
    return f"a {type(state).__name__}"


def _check_and_load(encoder: nn.Module, state: Mapping[str, Tensor], complaint: str) -> None:
    expected = encoder.state_dict()
    given = {key: value for key, value in state.items() if key in expected or not _CLASSIFIER.match(key)}
    faults = {
        # Files from before torch 0.4.1 lack these counters; zero is right for them.
        "missing": [key for key in expected if key not in given and not key.endswith("num_batches_tracked")],
        "unexpected": [key for key in given if key not in expected],
        "of another shape": [
            f"{key} {tuple(value.shape)} instead of {tuple(expected[key].shape)}"
            for key, value in given.items()
            if key in expected and value.shape != expected[key].shape
        ],
    }
    if any(faults.values()):
        listed = "; ".join(f"{kind}: {_shorten(keys)}" for kind, keys in faults.items() if keys)
        raise UsageError(f"{complaint}: {listed}. Expected torchvision's own state_dict for that name")
    encoder.load_state_dict(given, strict=False)


def _shorten(keys: list[str], most: int = 8) -> str:
    return ", ".join(keys[:most]) + (f" and {len(keys) - most} more" if len(keys) > most else "")
