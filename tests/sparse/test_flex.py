"""FlexAttention's form gives what the layer gives. It runs here without being compiled; a card compiles the same."""

import pytest
import torch

from synth_lib.sparse import flex
from tests.sparse.layers import make

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.parametrize("head", [1, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["window", "strided", "fixed", "routed"])
def test_the_mask_is_that_of_the_layer(name, causal, head):
    """One half of the heads for the other, a forgotten order, and no key for a query without one would be seen."""
    layer, x = make(name, causal=causal, head=head), torch.randn(2, 19, 12)
    chosen = flex.mask_mod(layer, x)
    axes = torch.meshgrid(*(torch.arange(size) for size in (2, head, 19, 19)), indexing="ij")
    assert torch.equal(chosen(*axes), layer(x)[1] > 0)


@pytest.mark.parametrize("score", ["dot_product", "dense", "factorized_random"])
@pytest.mark.parametrize("name", ["window", "strided", "fixed", "routed"])
def test_values_equal_the_layer(name, score):
    layer, x = make(name, score), torch.randn(2, 19, 12)
    with torch.no_grad():
        assert torch.allclose(flex.attend(layer, x), layer(x)[0], atol=1e-5)


def test_bad_input():
    x = torch.randn(2, 5, 12)
    for name, said in (("hashed", "Hashed:"), ("routed, nearest", "Routed with keep = 2:")):
        with pytest.raises(TypeError, match=f"there is no mask_mod for {said} call the layer"):
            flex.attend(make(name), x)
    with pytest.raises(ValueError, match="Random is no product of queries and keys alone"):
        flex.attend(make("window", "random"), x)
    layer = make("window", "factorized_random").requires_grad_(False)
    for wanted in (x.clone().requires_grad_(), x):
        with pytest.raises(ValueError, match="FlexAttention has no gradients on cpu: use torch.no_grad"):
            flex.attend(layer, wanted)
        layer.requires_grad_(True)
    layer.train().dropout = 0.1
    with pytest.raises(ValueError, match="dropout is 0.1"):
        flex.attend(layer, x)
