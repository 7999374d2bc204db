"""Encoders by name are torchvision's own networks up to the classification layer."""

from __future__ import annotations

import copy
import pickle
import urllib.error
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models

from seqckpt.errors import UsageError
from seqckpt.models import SmallEncoder, build_encoder, list_encoders
from seqckpt.models import weights as weights_module

# One of each family, the smallest there is; its size of image, its number of features, some of its stages.
FAMILIES = {
    "alexnet": (64, 4096, ["features_0", "classifier_4"]),
    "convnext_tiny": (32, 768, ["features_0", "features_7", "avgpool", "classifier_0"]),
    "densenet121": (32, 1024, ["features_conv0", "features_denseblock4", "features_norm5", "relu", "avgpool"]),
    "efficientnet_b0": (32, 1280, ["features_0", "features_8", "avgpool"]),
    "mnasnet0_5": (32, 1280, ["layers_0", "layers_16", "avgpool"]),
    "mobilenet_v2": (32, 1280, ["features_0", "features_18", "avgpool"]),
    "mobilenet_v3_small": (32, 1024, ["features_0", "avgpool", "classifier_0"]),
    "regnet_x_400mf": (32, 400, ["stem", "trunk_output_block1", "trunk_output_block4"]),
    "resnet18": (
        32,
        512,
        ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool", "flatten"],
    ),
    "shufflenet_v2_x0_5": (32, 1024, ["conv1", "stage2", "conv5"]),
    "squeezenet1_1": (32, 512, ["features_0", "features_12", "avgpool"]),
    "swin_t": (32, 768, ["features_0", "features_7", "norm", "permute", "avgpool"]),
    "vgg11": (32, 4096, ["features_0", "features_20", "avgpool", "flatten", "classifier_0", "classifier_4"]),
}
HEAVY = ("alexnet", "densenet121", "efficientnet_b0", "mobilenet_v2", "swin_t", "vgg11")
TOO_LARGE = ("regnet_y_128gf",)  # 2.6 GB of weights, of the family of the other regnets
OTHERS = sorted(set(list_encoders()) - set(FAMILIES) - {"small"})


class Recorder(nn.Module):
    """Stands in for a classification layer and keeps what reaches it."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.features = features
        return features


def input_of_classifier(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return what torchvision's network hands to its last layer with weights."""
    name = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    parent, _, child = name.rpartition(".")
    recorder = Recorder()
    setattr(network.get_submodule(parent), child, recorder)
    network(images)
    if recorder.features.dim() == 4:  # SqueezeNet classifies before it pools; an encoder pools before
        return recorder.features.mean((2, 3))
    return recorder.features


def check_against_torchvision(name: str, size: int) -> nn.Sequential:
    network = models.get_model(name, weights=None).eval()
    encoder = build_encoder(name).eval()
    kept = {key: value for key, value in network.state_dict().items() if key in encoder.state_dict()}
    assert list(kept) == list(encoder.state_dict())
    assert len(network.state_dict()) - len(kept) in (1, 2)  # weight and bias of one layer
    encoder.load_state_dict(kept)
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        features = encoder(images)
        assert features.shape == (2, encoder.num_features)
        # The same kernels in the same order; only SqueezeNet's pooling is written differently here.
        torch.testing.assert_close(features, input_of_classifier(network, images), rtol=1e-6, atol=1e-6)
    return encoder


def check_that_no_stage_changes_its_input(encoder: nn.Module, size: int) -> None:
    """So that what stands between two stages may be kept for a replay."""
    rows = torch.randn(2, 3, size, size)
    with torch.no_grad():
        for name, stage in encoder.named_children():
            before = rows.clone()
            after = stage(rows)
            assert torch.equal(rows, before), name
            rows = after


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in FAMILIES])
def test_every_family_equals_torchvision_up_to_the_classifier(name: str) -> None:
    size, num_features, stages = FAMILIES[name]
    encoder = check_against_torchvision(name, size)
    assert encoder.num_features == num_features
    names = [name for name, _ in encoder.named_children()]
    assert [stage for stage in names if stage in stages] == stages  # all there, in this order
    assert not any(isinstance(stage, nn.Dropout) for stage in list(encoder.children())[-2:])
    check_that_no_stage_changes_its_input(encoder.train(), size)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OTHERS if name not in TOO_LARGE])
def test_all_other_names_equal_torchvision_too(name: str) -> None:
    check_that_no_stage_changes_its_input(check_against_torchvision(name, 64).train(), 64)


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
def test_copies_and_pickles(name: str) -> None:
    encoder = build_encoder(name).eval()
    images = torch.randn(2, 3, 32, 32)
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert torch.equal(twin(images), encoder(images))
        assert list(twin.state_dict()) == list(encoder.state_dict())
        assert twin.num_features == encoder.num_features
        twin.load_state_dict(encoder.state_dict())


def test_keys_of_stages_survive_nesting() -> None:
    outer = nn.Sequential(nn.Identity(), build_encoder("mobilenet_v3_small"))
    state = outer.state_dict()
    assert "1.features.0.0.weight" in state
    twin = nn.Sequential(nn.Identity(), build_encoder("mobilenet_v3_small"))
    twin.load_state_dict(state)
    assert all(torch.equal(mine, state[key]) for key, mine in twin.state_dict().items())


def test_small_encoder() -> None:
    encoder = build_encoder("small", num_features=24)
    frames = torch.randn(5, 3, 64, 64)
    features = encoder(frames)
    assert features.shape == (5, 24)
    assert encoder.num_features == 24
    # Each frame by itself: no batch norm in it. Another batch size rounds differently.
    torch.testing.assert_close(torch.cat([encoder(frame[None]) for frame in frames]), features, rtol=1e-4, atol=1e-5)
    assert encoder(torch.randn(1, 3, 16, 40)).shape == (1, 24)
    assert SmallEncoder(5, width=11)(torch.randn(1, 3, 8, 8)).shape == (1, 5)
    assert list(encoder.state_dict()) == [key for key, _ in encoder.named_parameters()]
    with pytest.raises(UsageError, match="num_features=0"):
        build_encoder("small", num_features=0)


def test_all_parameters_of_the_small_encoder_learn() -> None:
    encoder = build_encoder("small")
    encoder(torch.randn(8, 3, 64, 64)).square().sum().backward()
    assert [name for name, weight in encoder.named_parameters() if not weight.grad.abs().sum() > 0] == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "'resnet81' is unknown: did you mean .*resnet18"),
        ("ResNet50", "did you mean .*resnet50"),
        ("vit_b_16", "'vit_b_16' is unknown"),
        ("qqqqqqqq", "Known are: small, alexnet"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_encoder(name)


def test_num_features_is_for_small_only() -> None:
    with pytest.raises(UsageError, match="only 'small' lets it be chosen"):
        build_encoder("resnet18", num_features=64)


def test_weights_from_a_torchvision_file(tmp_path: Path) -> None:
    network = models.resnet18(weights=None)
    path = tmp_path / "Gewichte für resnet 18.pth"
    torch.save(network.state_dict(), path)
    encoder = build_encoder("resnet18", weights=str(path))
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in encoder.state_dict().items())


def test_weights_from_a_file_without_counters(tmp_path: Path) -> None:
    """Files of old torch versions have no num_batches_tracked."""
    state = {key: value for key, value in models.resnet18().state_dict().items() if "num_batches" not in key}
    torch.save(state, tmp_path / "old.pth")
    encoder = build_encoder("resnet18", weights=str(tmp_path / "old.pth"))
    assert torch.equal(encoder.conv1.weight, state["conv1.weight"])


def test_weights_with_the_old_names_of_densenet(tmp_path: Path) -> None:
    state = models.densenet121(weights=None).state_dict()
    old = {key.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): value for key, value in state.items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "densenet.pth")
    encoder = build_encoder("densenet121", weights=str(tmp_path / "densenet.pth"))
    assert all(torch.equal(value, state[key]) for key, value in encoder.state_dict().items())


def test_weights_of_the_small_encoder(tmp_path: Path) -> None:
    torch.save(build_encoder("small").state_dict(), tmp_path / "small.pt")
    twin = build_encoder("small", weights=str(tmp_path / "small.pt"))
    saved = torch.load(tmp_path / "small.pt", weights_only=True)
    assert all(torch.equal(value, saved[key]) for key, value in twin.state_dict().items())
    with pytest.raises(UsageError, match=r"no weights are published for encoder 'small'"):
        build_encoder("small", weights="DEFAULT")
    with pytest.raises(UsageError, match=r"project\.0\.weight \(64, 1024\) instead of \(32, 1024\)"):
        build_encoder("small", weights=str(tmp_path / "small.pt"), num_features=32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("layer1.0.conv1.weight"), "missing: layer1.0.conv1.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "unexpected: extra"),
        (lambda state: state.update({"conv1.weight": torch.zeros(64, 1, 7, 7)}), r"conv1.weight \(64, 1, 7, 7\)"),
        (lambda state: state.clear(), "holds a mapping with the keys .none."),
        (lambda state: state.update(epoch=3), "a state_dict was expected"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, change, message: str) -> None:
    state = dict(models.resnet18(weights=None).state_dict())
    change(state)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(UsageError, match=message):
        build_encoder("resnet18", weights=str(tmp_path / "weights.pth"))


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*nothing.pth"):
        build_encoder("small", weights=str(tmp_path / "nothing.pth"))
    (tmp_path / "text.pth").write_text("no weights at all")
    with pytest.raises(UsageError, match=r"text\.pth cannot be read"):
        build_encoder("small", weights=str(tmp_path / "text.pth"))
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")  # a whole object: code, not only tensors
    with pytest.raises(UsageError, match=r"module.pth cannot be read.*save model.state_dict\(\)"):
        build_encoder("small", weights=str(tmp_path / "module.pth"))


def test_default_weights_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(weights_module.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(weights_module.hub, "download_url_to_file", no_network)
    with pytest.raises(UsageError, match="no route to host") as caught:
        build_encoder("resnet18", weights="DEFAULT")
    message = str(caught.value)
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in message
    assert str(tmp_path / "checkpoints" / "resnet18-f37072fd.pth") in message
    assert "weights=path/to/resnet18-f37072fd.pth" in message


def test_default_weights_from_a_file_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    state = models.resnet18(weights=None).state_dict()
    torch.save(state, tmp_path / "checkpoints" / "resnet18-f37072fd.pth")
    encoder = build_encoder("resnet18", weights="DEFAULT")
    assert torch.equal(encoder.conv1.weight, state["conv1.weight"])
