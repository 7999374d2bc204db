"""The checkpointing tutorial and the NiN notebook that this project grew from, corrected, as tests.

What they showed is shown again with real measurements; where their recipe was wrong, the wrong numbers are shown beside
the right ones, so that nobody repeats it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measures import saved_bytes
from torch import Tensor, nn

from seqckpt import Checkpointed, ChunkedEncoder, SegmentedLoss, SegmentedRNN, checkpoint_sequential, checkpointed_scan


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


# ------------------------------------------------------------------ sequential models


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_sequential_model(segments: int) -> None:
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 5), nn.ReLU())
    x = torch.randn(8, 100, requires_grad=True)
    plain = model(x)
    expected = gradients(model, plain.square().sum())
    expected_x, x.grad = x.grad, None
    out = checkpoint_sequential(model, x, segments=segments)
    assert torch.equal(out, plain)
    assert_equal(gradients(model, out.square().sum()), expected)
    assert torch.equal(x.grad, expected_x)


# ------------------------------------------------------------------ the word language model

NUM_WORDS, T, B = 50, 70, 3


class LanguageModel(nn.Module):
    """Embedding, recurrent network and decoder: the plain model, and each part by segments."""

    def __init__(self, kind: str, dropout: float = 0.5) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(NUM_WORDS, 8)
        self.rnn = getattr(nn, kind)(8, 16, 2, dropout=dropout)
        self.decoder = nn.Linear(16, NUM_WORDS)

    def hidden(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, state = self.rnn(self.drop(self.encoder(words)), state)
        return self.drop(hidden), state

    def forward(self, words: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.hidden(words, state)
        return F.cross_entropy(self.decoder(hidden).flatten(0, 1), targets.flatten()), state


class SegmentedLanguageModel(nn.Module):
    def __init__(self, plain: LanguageModel, segment_length: int) -> None:
        super().__init__()
        self.plain = plain
        self.rnn = SegmentedRNN(plain.rnn, segment_length)
        self.head = SegmentedLoss(plain.decoder, nn.CrossEntropyLoss(), segment_length, batch_first=False)

    def forward(self, words: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.rnn(self.plain.drop(self.plain.encoder(words)), state)
        return self.head(self.plain.drop(hidden), targets), state


def text() -> tuple[Tensor, Tensor]:
    words = torch.randint(NUM_WORDS, (T + 1, B))
    return words[:-1], words[1:]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_language_model_with_segmented_bptt_and_decoder(kind: str) -> None:
    """With dropout before, between and after the layers; T is no multiple of the segment; a state is carried."""
    model = LanguageModel(kind).double()
    segmented = SegmentedLanguageModel(model, 16)
    results = []
    texts = [text() for _ in range(2)]
    for run in (model, segmented):
        torch.manual_seed(3)
        state = None
        for words, targets in texts:
            loss, state = run(words, targets, state)
            found = gradients(model, loss)
            state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        results.append((loss.item(), found, torch.get_rng_state()))
    (loss, expected, random), (segmented_loss, got, segmented_random) = results
    assert abs(loss - segmented_loss) < 1e-12
    for name, grad in expected.items():
        assert (grad - got[name]).abs().max() < 1e-10, name  # float64: segment sums in another order
    assert torch.equal(random, segmented_random)


def test_run_function_of_the_users_own() -> None:
    """The tutorial's way: a run function over a segment of the input and the state."""
    model = LanguageModel("LSTM", dropout=0.0).double()
    words, _ = text()
    expected, (h, c) = model.rnn(model.encoder(words))
    wanted = gradients(model.rnn, expected.square().sum() + h.sum() + c.sum())
    zeros = torch.zeros(2, B, 16, dtype=torch.float64)
    hidden, (h, c) = checkpointed_scan(
        lambda x, state: model.rnn(x, state), model.encoder(words), (zeros, zeros), 16, time_dim=0
    )
    got = gradients(model.rnn, hidden.square().sum() + h.sum() + c.sum())
    for name in wanted:
        assert (wanted[name] - got[name]).abs().max() < 1e-10, name


def published_recipe(model: LanguageModel, words: Tensor, targets: Tensor, segment_length: int) -> dict[str, Tensor]:
    """Decoder and loss by segments as it was published: wrong in two ways.

    A hook notes the gradient of the hidden states in each piece's backward, and overwrites it at the next; and every
    piece contributes the mean of its own frames.
    """
    model.zero_grad()
    hidden, _ = model.hidden(words, None)
    cut = hidden.detach().requires_grad_()
    noted: dict[str, Tensor] = {}
    cut.register_hook(lambda grad: noted.update(last=grad))
    for piece, wanted in zip(cut.split(segment_length), targets.split(segment_length), strict=True):
        F.cross_entropy(model.decoder(piece).flatten(0, 1), wanted.flatten()).backward()
    hidden.backward(noted["last"])
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def corrected_recipe(model: LanguageModel, words: Tensor, targets: Tensor, segment_length: int) -> dict[str, Tensor]:
    """By hand: every piece weighted by its share of the frames, gradients of the hidden states added up."""
    model.zero_grad()
    hidden, _ = model.hidden(words, None)
    cut = hidden.detach().requires_grad_()
    for piece, wanted in zip(cut.split(segment_length), targets.split(segment_length), strict=True):
        share = wanted.numel() / targets.numel()
        (share * F.cross_entropy(model.decoder(piece).flatten(0, 1), wanted.flatten())).backward()
    hidden.backward(cut.grad)
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_errors_of_the_published_decoder_recipe() -> None:
    """Only the last piece reaches the recurrent network, and a sum of means is as many times the mean as pieces."""
    model = LanguageModel("LSTM", dropout=0.0).double()
    words, targets = text()
    expected = gradients(model, model(words, targets)[0])
    wrong = published_recipe(model, words, targets, 7)
    by_hand = corrected_recipe(model, words, targets, 7)
    ours = gradients(model, SegmentedLanguageModel(model, 7)(words, targets)[0])

    # ten pieces of equal length: ten times the decoder's gradient
    torch.testing.assert_close(wrong["decoder.weight"], 10 * expected["decoder.weight"], rtol=1e-10, atol=1e-14)
    for name in ("rnn.weight_ih_l0", "rnn.weight_hh_l1"):
        cosine = torch.cosine_similarity(wrong[name].flatten(), expected[name].flatten(), 0)
        assert cosine < 0.9, name  # it points elsewhere
    for right in (by_hand, ours):
        for name in expected:
            assert (right[name] - expected[name]).abs().max() < 1e-10, name


def test_sum_of_means_is_wrong_by_more_than_a_factor_where_pieces_differ() -> None:
    model = LanguageModel("LSTM", dropout=0.0).double()
    words, targets = text()
    expected = gradients(model, model(words, targets)[0])["decoder.weight"]
    wrong = published_recipe(model, words, targets, 23)["decoder.weight"]  # 23 + 23 + 23 + 1
    ours = gradients(model, SegmentedLanguageModel(model, 23)(words, targets)[0])["decoder.weight"]
    assert torch.cosine_similarity(wrong.flatten(), expected.flatten(), 0) < 0.99
    assert (ours - expected).abs().max() < 1e-10


# ------------------------------------------------------------------ any module


class ConvBNReLU(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_in, num_out, 1, bias=False)
        self.norm = nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)))


def network(wrap: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    stem = OrderedDict(conv=nn.Conv2d(3, 16, 3, padding=1, bias=False), norm=nn.BatchNorm2d(16), relu=nn.ReLU())
    parts = OrderedDict(features=nn.Sequential(stem), module=wrap(ConvBNReLU(16, 64)), final=ConvBNReLU(64, 64))
    return nn.Sequential(parts)


def test_one_module_of_a_network() -> None:
    """Outputs, gradients and running statistics over three steps, with the plain network's own state_dict."""
    plain, checkpointed = network(lambda module: module), network(Checkpointed)
    checkpointed.load_state_dict(plain.state_dict())
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8)
        outputs = [model(x) for model in (plain, checkpointed)]
        assert torch.equal(*outputs)
        found = [gradients(m, y.square().mean()) for m, y in zip((plain, checkpointed), outputs, strict=True)]
        assert_equal({name.replace("module.module.", "module."): g for name, g in found[1].items()}, found[0])
    assert_equal(checkpointed.state_dict(), plain.state_dict())


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_dropout_has_one_mask(p: float) -> None:
    layers = nn.Sequential(nn.Linear(20, 20), nn.Dropout(p), nn.Linear(20, 20)).double()
    x = torch.randn(4, 20, dtype=torch.float64, requires_grad=True)
    results = []
    for run in (layers, Checkpointed(layers), lambda x: checkpoint_sequential(layers, x, segments=1)):
        x.grad = None
        torch.manual_seed(11)
        found = gradients(layers, run(x).square().sum())
        results.append((found, x.grad, torch.rand(1)))
    for found, grad, following in results[1:]:
        assert_equal(found, results[0][0])
        assert torch.equal(grad, results[0][1])
        assert torch.equal(following, results[0][2])


# ------------------------------------------------------------------ batch-norm statistics


def ones(num_frames: int, value: float = 1.0) -> Tensor:
    """Frames of one channel whose mean is `value`."""
    return torch.tensor([value - 1, value + 1]).repeat(num_frames // 2).reshape(1, num_frames, 1)


def chunked_norm(momentum: float | None) -> tuple[nn.BatchNorm1d, ChunkedEncoder]:
    norm = nn.BatchNorm1d(1, momentum=momentum)
    return norm, ChunkedEncoder(norm, 4)


@pytest.mark.parametrize(("num_chunks", "mean"), [(1, 0.1), (3, 0.271)])
@pytest.mark.parametrize("with_backward", [True, False])
def test_running_mean_moves_once_per_chunk(num_chunks: int, mean: float, with_backward: bool) -> None:
    """Case 34: two updates per chunk would give 0.19 and 0.468559, and count 2 and 6."""
    norm, encoder = chunked_norm(0.1)
    features = encoder(ones(4 * num_chunks))
    if with_backward:
        features.square().sum().backward()
    assert norm.running_mean.item() == pytest.approx(mean, rel=1e-6)  # float32
    assert norm.num_batches_tracked.item() == num_chunks
    assert norm.momentum == 0.1


def test_cumulative_average_is_the_mean_of_the_chunks_means() -> None:
    norm, encoder = chunked_norm(None)
    encoder(torch.cat([ones(4, value) for value in (1.0, 2.0, 6.0)], 1)).sum().backward()
    assert norm.running_mean.item() == pytest.approx(3.0, rel=1e-6)  # float32
    assert norm.num_batches_tracked.item() == 3


def test_square_root_of_momentum_is_wrong() -> None:
    """The published trick, in torch's convention, where momentum is the weight of the new value."""

    def after_two_updates(momentum: float) -> float:
        norm = nn.BatchNorm1d(1, momentum=momentum)
        for _ in range(2):
            norm(ones(4)[0])
        return norm.running_mean.item()

    assert after_two_updates(0.1**0.5) == pytest.approx(0.532, abs=1e-3)  # should be 0.1
    assert after_two_updates(1 - 0.9**0.5) == pytest.approx(0.1, rel=1e-6)  # right for two updates and no other number
    norm, encoder = chunked_norm(1 - 0.9**0.5)
    encoder(ones(4)).sum()  # one update, as in a forward without backward
    assert norm.running_mean.item() == pytest.approx(0.0513, abs=1e-4)


class Failing(nn.Module):
    """Fails on demand, in the middle of a replay."""

    fail = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fail:
            raise OSError("the disk is gone")
        return x


def test_error_in_a_replay_leaves_statistics_and_random_state_as_they_were() -> None:
    failing = Failing()
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(), failing)
    features = ChunkedEncoder(model, 4)(ones(12))
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    failing.fail = True
    with pytest.raises(OSError, match="the disk is gone"):
        features.sum().backward()
    assert_equal(dict(model.state_dict()), dict(before))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p._backward_hooks is None for p in model.parameters())
    failing.fail = False
    expected = nn.BatchNorm1d(1)
    model(ones(4)[0]).sum().backward()  # and training goes on
    expected(ones(4)[0])
    assert model[0].num_batches_tracked.item() == 4


# ------------------------------------------------------------------ the notebook: network in network


def network_in_network(width: int = 12) -> nn.Sequential:
    """Mlpconv blocks (Lin et al. 2013) for 32 x 32 images; ReLUs in place, as in the notebook."""

    def block(num_in: int, num_out: int, kernel: int, pool: nn.Module) -> list[nn.Module]:
        sizes = [(num_in, width, kernel), (width, width, 1), (width, num_out, 1)]
        layers: list[nn.Module] = []
        for a, b, size in sizes:
            layers += [nn.Conv2d(a, b, size, padding=size // 2), nn.ReLU(inplace=True)]
        return [*layers, pool]

    return nn.Sequential(
        *block(3, width, 5, nn.MaxPool2d(3, 2, 1)),
        nn.Dropout(0.5),
        *block(width, width, 5, nn.AvgPool2d(3, 2, 1)),
        nn.Dropout(0.5),
        *block(width, 10, 3, nn.AvgPool2d(8)),
        nn.Flatten(),
    )


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, 32, 32), torch.randint(10, (8,))


@pytest.mark.parametrize("segments", [1, 3])
def test_network_in_network_has_the_same_loss_curve(segments: int) -> None:
    """Bitwise, in float32, with Adam and dropout, over five steps."""
    batches = [images() for _ in range(5)]

    def train(run: Callable[[nn.Sequential, Tensor], Tensor]) -> list[float]:
        torch.manual_seed(1)
        model = network_in_network()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for x, y in batches:
            loss = F.cross_entropy(run(model, x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    plain = train(lambda model, x: model(x))
    assert len(set(plain)) == 5
    assert train(lambda model, x: checkpoint_sequential(model, x, segments=segments)) == plain


def test_one_segment_of_torch_saves_nothing_and_ours_does() -> None:
    """The notebook compared `segments=1` by the Python heap, which tensors are not on: it compared plain with plain."""
    model, (x, _) = network_in_network(), images()
    apart = (x, *model.parameters())
    plain = saved_bytes(lambda: model(x), *apart)
    torchs = saved_bytes(
        lambda: torch.utils.checkpoint.checkpoint_sequential(list(model), 1, x, use_reentrant=False), *apart
    )
    one, three = (saved_bytes(lambda n=n: checkpoint_sequential(model, x, segments=n), *apart) for n in (1, 3) if n)
    assert torchs == plain > 10**6
    assert one == 0  # the whole is replayed from the input
    assert 0 < three < plain / 2
