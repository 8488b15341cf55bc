"""Each rewrite of the graph: it applies where it should, to any values and sizes, and not beside it."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.draft.algebra import RULES, _same_ranges, rewritten
from compiler.draft.exported import export
from tests.nodes.draft.direct import Pair, check_group, problem, together

LINEAR = "self.linear = nn.Linear(33, 17)"
HOLDS = {
    "complex_parts": problem(
        "z = torch.view_as_complex(x)\nreturn torch.view_as_real(z * z.conj() - z * torch.polar(y, y)), z.abs()",
        "[torch.randn(5, 7, 2), torch.rand(7)]",
    ),
    "diagonal_product": problem("return torch.diag(x) @ y, y.t() @ torch.diag(x)", "[torch.randn(9), torch.randn(9, 13)]"),
    "triangle_of_product": problem("return torch.tril(x @ y)", "[torch.randn(515, 9), torch.randn(9, 640)]"),
    "summed_linear": problem("return (self.linear(x) / 3).sum(dim=1, keepdim=True).tanh()", "[torch.randn(6, 33)]", LINEAR),
    "stacked_rows": problem(
        "return torch.relu(torch.stack([self.linear(x[:, step]) for step in range(4)], dim=1))", "[torch.randn(3, 4, 33)]", LINEAR
    ),
    "slice_of_einsum": problem(
        "return torch.einsum('abc, cd -> bad', x, y)[:, -2]", "[torch.randn(3, 4, 5), torch.randn(5, 6)]"
    ),
    "backwards_scan": problem("return torch.cumsum(x.flip(1), dim=1).flip(1)", "[torch.randn(3, 700)]"),
    "exclusive_scan": problem(
        "return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], dim=1)), dim=1)", "[torch.randn(3, 700)]"
    ),
    "mean_of_transposed_convolution": problem(
        "return (self.conv(x) * 0.5).mean(dim=(2, 3))", "[torch.randn(3, 4, 7, 6)]",
        "self.conv = nn.ConvTranspose2d(4, 5, (3, 4), stride=(2, 1), padding=1, output_padding=(1, 0))",
    ),
}  # fmt: skip
BESIDE = {
    "a diagonal that is not the main one": problem(
        "return torch.diag(x, 1) @ y", "[torch.randn(8), torch.randn(9, 13)]"
    ),
    "a layer that is read again": problem("y = self.linear(x)\nreturn y.sum(dim=1), y", "[torch.randn(6, 33)]", LINEAR),
    "rows of which some are left out": problem(
        "return torch.stack([self.linear(x[step]) for step in range(3)])", "[torch.randn(4, 6, 33)]", LINEAR
    ),
    "a slice of an einsum that is read again": problem(
        "y = torch.einsum('abc, cd -> bad', x, y)\nreturn y[0], y", "[torch.randn(3, 4, 5), torch.randn(5, 6)]"
    ),
    "a slice of what is one for all": problem(
        "return torch.einsum('ab, ab -> ab', x, y)[2]", "[torch.randn(3, 4), torch.randn(1, 4)]"
    ),
    "flips of different axes": problem("return torch.cumsum(x.flip(0), dim=1).flip(1)", "[torch.randn(3, 7)]"),
    "ones in front": problem(
        "return torch.cat((torch.ones_like(x[:, :1]), torch.cumsum(x[:, :-1], dim=1)), dim=1)", "[torch.randn(3, 7)]"
    ),
}


def test_every_rule_has_an_example():
    assert sorted(HOLDS) == sorted(rule.__name__ for rule in RULES)


def test_rules_that_apply_change_no_result(tmp_path):
    def check(text: str) -> None:
        pair = Pair(text, tmp_path)
        for name in HOLDS if text.count("class Model") > 2 else ():
            assert any(note.startswith(name.replace("_", " ")) for note in pair.answer["notes"]), name
        pair.check(0, pair.inputs(0))
        pair.check(1, pair.inputs(1, scale=30.0, shift=-2.0))

    check_group(HOLDS, tuple(HOLDS), check)


def test_no_rule_applies_beside_its_pattern():
    assert rewritten(export(together(BESIDE.values())).graph.graph, RULES) == []


def test_weights_that_are_loaded_are_prepared_again(tmp_path):
    """Or a checkpoint would be served with sums of the weights before it."""
    pair = Pair(HOLDS["summed_linear"], tmp_path)
    (x,) = pair.inputs(0)
    torch.manual_seed(1)
    trained = pair.reference.Model()
    new = copy.deepcopy(pair.candidate.ModelNew())
    with torch.no_grad():
        assert not torch.allclose(new(x), trained(x), atol=1e-3)
        new.load_state_dict(trained.state_dict())
        torch.testing.assert_close(new(x), trained(x))


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.integers(0, 1))
@settings(max_examples=80, deadline=None)
def test_ranges_of_a_transposed_convolution_sum_to_the_whole(window, size, stride, padding, dilation, more):
    more = min(more, max(stride, dilation) - 1)
    places = (size - 1) * stride - 2 * padding + dilation * (window - 1) + more + 1
    if places < 1:
        return
    x, w = torch.randn(1, 1, size, dtype=torch.float64), torch.randn(1, 1, window, dtype=torch.float64)
    whole = torch.nn.functional.conv_transpose1d(
        x, w, stride=stride, padding=padding, output_padding=more, dilation=dilation
    )
    parts = _same_ranges([window], [size], [places], [stride], [padding], [dilation])
    total = sum(x[..., i[0] : max(i)].sum() * w[..., k[0] : k[1]].sum() for (i,), (k,) in parts)
    torch.testing.assert_close(total, whole.sum())
