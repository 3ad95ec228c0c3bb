"""From logits to tokens: which tokens may be drawn, and whether a search finds what counting all outputs finds."""

import math
from itertools import product

import pytest
import torch

from synth_lib.decoding import beam_search, check_sampling, greedy_search, length_factor, sample
from tests.helpers.properties import refuses

START, END = 7, 0  # START is no token that can be written


def logits_of(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


def draw(logits, draws=6000, seed=3, **options):
    """Draw so many times from one row of logits -> how often each token came."""
    tokens = sample(logits.expand(draws, -1), generator=torch.Generator().manual_seed(seed), **options)
    assert tokens.shape == (draws, 1) and tokens.dtype == torch.int64
    return torch.bincount(tokens[:, 0], minlength=logits.shape[-1]) / draws


def drawn(logits, **options):
    """The tokens that may be drawn: every one of them has a probability of at least 0.02 here."""
    return draw(logits, **options).nonzero()[:, 0].tolist()


# sample

FIVE = logits_of(0.1, 0.4, 0.05, 0.25, 0.2)  # most likely first: 1 3 4 0 2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_of_the_divided_logits(temperature):
    weights = [p ** (1 / temperature) for p in (0.1, 0.4, 0.05, 0.25, 0.2)]
    expected = torch.tensor([w / sum(weights) for w in weights])
    assert (draw(FIVE, 20000, temperature=temperature) - expected).abs().max() < 0.015


def test_temperature_0_takes_the_most_likely_and_the_first_of_equals():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 2.0], [-5.0, -4.0, -3.0]])
    before = torch.get_rng_state()
    for options in ({}, {"top_k": 2}, {"top_p": 0.3}):
        assert sample(logits, 0, **options).tolist() == [[1], [0], [2]]
    assert torch.equal(torch.get_rng_state(), before), "nothing is drawn"


@pytest.mark.parametrize(
    "k, allowed", [(1, [1]), (2, [1, 3]), (4, [0, 1, 3, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_top_k_allows_the_k_most_likely(k, allowed):
    assert drawn(FIVE, top_k=k) == allowed


def test_what_is_left_keeps_its_proportions():
    counts = draw(FIVE, 20000, top_k=3)
    assert (counts - torch.tensor([0, 0.4, 0, 0.25, 0.2]) / 0.85).abs().max() < 0.015


def test_top_k_takes_exactly_k_of_equals_the_first_ones():
    assert drawn(torch.zeros(1, 5), top_k=2) == [0, 1]
    assert drawn(torch.tensor([[1.0, 2.0, 1.0, 1.0]]), top_k=3) == [0, 1, 2]
    many = torch.zeros(1, 1000)  # long rows are where an unstable sort mixes equals
    assert max(drawn(many, top_k=5)) == 4


@pytest.mark.parametrize(
    "p, allowed",
    [
        (1e-9, [1]),
        (0.39, [1]),
        (0.41, [1, 3]),
        (0.64, [1, 3]),
        (0.66, [1, 3, 4]),
        (0.94, [0, 1, 3, 4]),
        (0.96, [0, 1, 2, 3, 4]),
        (1, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_allows_the_fewest_that_reach_p(p, allowed):
    assert drawn(FIVE, top_p=p) == allowed


def test_top_p_stops_as_soon_as_p_is_reached():
    """Four equal tokens have 1/4 each, exactly: two of them reach 1/2."""
    assert [drawn(torch.zeros(1, 4), top_p=p) for p in (0.25, 0.5, 0.51)] == [[0], [0, 1], [0, 1, 2]]


def test_top_p_sees_the_probabilities_at_the_temperature():
    """At temperature 2, 0.64, 0.32 and 0.04 become 0.8, 0.57 and 0.2 over their sum: 0.51, 0.36 and 0.13."""
    logits = logits_of(0.64, 0.32, 0.04)
    assert drawn(logits, top_p=0.6) == [0]
    assert drawn(logits, top_p=0.6, temperature=2) == [0, 1]
    assert drawn(logits, top_p=0.9, temperature=2) == [0, 1, 2]
    assert drawn(logits, top_p=0.9) == [0, 1]


def test_top_k_and_top_p_together():
    """top_p counts what top_k has left as 1: of 0.4 and 0.25, the first has 0.62."""
    assert drawn(FIVE, top_k=2, top_p=0.6) == [1]
    assert drawn(FIVE, top_p=0.6) == [1, 3]
    assert drawn(FIVE, top_k=2, top_p=0.63) == [1, 3]
    assert drawn(FIVE, top_k=2, top_p=1) == [1, 3]
    assert drawn(FIVE, top_k=4, top_p=0.5) == [1, 3]


def test_every_sample_has_its_own_order():
    logits = torch.stack([FIVE[0], FIVE[0].flip(0), FIVE[0].roll(1)]).repeat(500, 1)
    for options in ({"top_k": 1}, {"top_p": 0.3}, {"temperature": 0}):
        assert sample(logits, **options).view(500, 3).unique(dim=0).tolist() == [[1, 3, 2]]


def test_the_generator_alone_decides():
    logits = FIVE.expand(50, -1)

    def with_seed(seed):
        return sample(logits, generator=torch.Generator().manual_seed(seed)).tolist()

    before = torch.get_rng_state()
    assert with_seed(1) == with_seed(1) != with_seed(2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert sample(logits).tolist() == with_seed(1), "without one it is torch's own"
    one = torch.Generator().manual_seed(1)
    assert sample(logits, generator=one).tolist() != sample(logits, generator=one).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extreme_logits_and_temperatures_stay_finite_and_logits_stay_as_they_are(dtype):
    logits = torch.tensor([[-6e4, 6e4, 0.0, float("-inf")]], dtype=dtype)
    given = logits.clone()
    for temperature in (1e-300, 1e-3, 1.0):
        for options in ({}, {"top_k": 3}, {"top_p": 0.9}):
            assert drawn(logits, temperature=temperature, **options) == [1]
    assert draw(logits, temperature=1e300)[3] == 0 and drawn(logits, temperature=1e300) == [0, 1, 2]
    assert torch.equal(logits, given)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": -0.5}, "temperature is -0.5, but must be a finite number of at least 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0, but must be a whole number of at least 1"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_p": 0}, "top_p is 0, but must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"top_p": "0.9"}, "top_p is '0.9'"),
        ({"top_p": True}, "top_p is True"),  # it would mean 1: everything
        ({"temperature": True}, "temperature is True"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    for refusing in (lambda **options: sample(FIVE, **options), check_sampling):
        with refuses(ValueError, message):
            refusing(**options)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("row", [[float("nan"), 1.0], [float("inf"), 1.0], [float("-inf")] * 2])
def test_a_diverged_model_writes_nothing(row, temperature):
    """The most likely of NaN was the first token, without a word."""
    with refuses(ValueError, "logits must hold no NaN"):
        sample(torch.tensor([[0.0, 1.0], row]), temperature)
    assert sample(torch.tensor([[float("-inf"), 1.0]]), temperature).tolist() == [[1]]  # a forbidden token is none


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
def test_logits_are_those_of_one_position(shape, temperature):
    with refuses(ValueError, f'logits must be "batch vocab", but are {shape}'):
        sample(torch.zeros(shape), temperature)


# Searches: a model that is a table of probabilities, one row for each beginning of an output


class Table:
    """A `step` whose logits depend on the sample and on all that was written before, as those of a decoder do.

    chances(sample, written) -> the probabilities of the next token, a list.
    """

    def __init__(self, chances, batch, beam=1):
        self.chances, self.calls = chances, 0
        self.written = [(row // beam, ()) for row in range(batch * beam)]
        self.beam = beam

    def __call__(self, tokens, rows):
        assert tokens.shape == (len(self.written), 1) and tokens.dtype == torch.int64
        if self.calls == 0:
            assert rows is None and (tokens == START).all()
        else:
            if rows is not None:
                self.written = [self.written[row] for row in rows.tolist()]
            self.written = [
                (at, (*before, token)) for (at, before), token in zip(self.written, tokens[:, 0].tolist(), strict=True)
            ]
        assert [at for at, _ in self.written] == [row // self.beam for row in range(len(self.written))], (
            "a beginning moved to another sample"
        )
        self.calls += 1
        return torch.tensor([self.chances(*where) for where in self.written], dtype=torch.float64).log()


def random_chances(vocab, seed, spread=1.5):
    """Chances drawn anew for every beginning, and the same whenever it is asked for."""
    known = {}

    def chances(at, written):
        if (at, written) not in known:
            number = hash((seed, at, *written)) % 2**32  # a hash of whole numbers is the same in every process
            logits = torch.randn(vocab, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            known[at, written] = (spread * logits).softmax(0).tolist()
        return known[at, written]

    return chances


def likelihood(chances, at, output):
    """The log-probability of the tokens of one output, its end among them if it has one."""
    return sum(math.log(chances(at, output[:i])[token]) for i, token in enumerate(output))


def judged(chances, at, output, length_penalty):
    return likelihood(chances, at, output) / ((5 + len(output)) / 6) ** length_penalty


def best_of_all(chances, at, vocab, count, length_penalty):
    """Every output of at most `count` tokens, the end among them, is judged; the best one, without its end."""
    tokens = [token for token in range(vocab) if token != END]
    outputs = [(*own, END) for length in range(count) for own in product(tokens, repeat=length)]
    return list(max(outputs, key=lambda output: judged(chances, at, output, length_penalty))[:-1])


def slow_beam(chances, at, vocab, count, beam, length_penalty):
    """The same search as loops over lists, that never stops early."""
    going_on, finished = [()], []
    for _ in range(count):
        longer = [(*before, token) for before in going_on for token in range(vocab)]
        longer = sorted(longer, key=lambda output: -likelihood(chances, at, output))[: 2 * beam]
        finished += [output for output in longer if output[-1] == END]
        going_on = [output for output in longer if output[-1] != END][:beam]
    if not finished:
        return list(going_on[0])
    return list(max(finished, key=lambda output: judged(chances, at, output, length_penalty))[:-1])


def search(chances, batch, count, beam, length_penalty):
    table = Table(chances, batch, beam)
    ends = {"start": START, "end": END, "count": count}
    return beam_search(table, batch, **ends, beam=beam, length_penalty=length_penalty), table


@pytest.mark.parametrize("length_penalty", [0, 0.6, 1, 3])
@pytest.mark.parametrize("vocab, count", [(3, 4), (3, 5), (4, 3), (2, 5)])
def test_a_beam_for_all_beginnings_finds_the_best_of_all_outputs(vocab, count, length_penalty):
    batch, beam, lengths = 3, (vocab - 1) ** (count - 1), set()
    for seed in range(8):
        chances = random_chances(vocab, seed)
        found, _ = search(chances, batch, count, beam, length_penalty)
        expected = [best_of_all(chances, at, vocab, count, length_penalty) for at in range(batch)]
        assert found == expected, f"seed {seed}"
        lengths |= {len(output) for output in found}
    assert len(lengths) > 1, "all outputs are equally long: this test proves little"


@pytest.mark.parametrize("length_penalty", [0, 0.6, 3])
@pytest.mark.parametrize("beam", [1, 2, 3, 7])
def test_a_narrow_beam_equals_the_loops_and_stopping_early_changes_nothing(beam, length_penalty):
    vocab, count, batch, early = 5, 5, 3, 0
    for seed in range(12):
        chances = random_chances(vocab, seed)
        found, table = search(chances, batch, count, beam, length_penalty)
        assert found == [slow_beam(chances, at, vocab, count, beam, length_penalty) for at in range(batch)]
        early += table.calls < count
    assert early or length_penalty == 3, "it never stops early: this test proves little"


def of_one_sample(chances, at):
    return lambda _, written: chances(at, written)


def test_a_batch_is_searched_sample_by_sample():
    ends = {"start": START, "end": END, "count": 5}
    for seed in range(6):
        chances = random_chances(4, seed)
        alone = [of_one_sample(chances, at) for at in range(4)]
        together, _ = search(chances, 4, 5, 2, 0.6)
        assert together == [search(one, 1, 5, 2, 0.6)[0][0] for one in alone]
        together = greedy_search(Table(chances, 4), 4, **ends)
        assert together == [greedy_search(Table(one, 1), 1, **ends)[0] for one in alone]


A, B = 1, 2


def trap(at, written):
    """A is the likelier first token, but after B the end is certain: B, end has 0.4, the best that A leads to 0.3."""
    if written == ():
        return [0.0, 0.6, 0.4]
    return [1.0, 0.0, 0.0] if written == (B,) else [0.5, 0.3, 0.2]


def test_greedy_loses_where_a_beam_of_two_wins():
    greedy = greedy_search(Table(trap, 1), 1, start=START, end=END, count=3)
    assert greedy == [[A]]
    found, _ = search(trap, 1, 3, 2, 0.0)
    assert found == [[B]] == [best_of_all_possible(3)]


def best_of_all_possible(count):
    outputs = [(*own, END) for length in range(count) for own in product((A, B), repeat=length)]

    def chance(output):
        return math.prod(trap(0, output[:i])[token] for i, token in enumerate(output))

    return list(max(outputs, key=chance)[:-1])


def test_the_length_penalty_prefers_longer_outputs_and_counts_the_end():
    """end has 0.5; A, end has 0.5 * 0.72 = 0.36: log -0.693 against -1.022. With a penalty of p the second is divided
    by (7 / 6)^p more often: equal at p = ln(1.474) / ln(7 / 6) = 2.517. Lengths of 0 and 1, without the end, would
    meet at ln(1.474) / ln(6 / 5) = 2.128."""

    def chances(at, written):
        return [0.5, 0.5] if written == () else [0.72, 0.28]

    assert [search(chances, 1, 2, 2, p)[0] for p in (0.0, 2.0, 2.4, 2.6, 4.0)] == [[[]], [[]], [[]], [[A]], [[A]]]


def test_length_factor():
    assert length_factor(1, 0.6) == 1 and length_factor(7, 1.0) == 2 and length_factor(9, 0) == 1
    assert length_factor(13, 0.5) == pytest.approx(3**0.5)


def test_it_goes_on_while_a_longer_output_can_still_win_and_no_longer():
    def chances(at, written):
        return [0.5, 0.5] if len(written) == 0 else [0.02, 0.98] if len(written) < 4 else [0.99, 0.01]

    count = 5  # end at once: -0.693. Four times A, then the end: -0.764, but divided by (10 / 6)^p
    for penalty, output, calls in ((0.0, [], 1), (0.6, [A] * 4, count)):
        found, table = search(chances, 1, count, 2, penalty)
        assert found == [output] == [best_of_all(chances, 0, 2, count, penalty)]
        assert table.calls == calls


def test_a_sample_that_is_done_waits_for_the_others():
    def chances(at, written):
        if at == 0:
            return [0.98, 0.01, 0.01]
        return [1e-9, 0.9, 0.1] if len(written) < 3 else [0.98, 0.01, 0.01]

    found, table = search(chances, 2, 6, 2, 0.6)
    assert found == [[], [A, A, A]] and table.calls == 4
    table = Table(chances, 2)
    assert greedy_search(table, 2, start=START, end=END, count=6) == [[], [A, A, A]] and table.calls == 4


def test_an_output_without_an_end_stops_at_count():
    def chances(at, written):
        return [0.0, 0.3, 0.7] if sum(written) % 3 else [0.0, 0.6, 0.4]

    outputs = list(product((A, B), repeat=4))
    best = list(max(outputs, key=lambda output: likelihood(chances, 0, output)))
    found, table = search(chances, 2, 4, 16, 0.6)
    assert found == [best, best] and table.calls == 4
    greedy = greedy_search(Table(chances, 1), 1, start=START, end=END, count=4)
    assert greedy == [[A, B, A, B]]


def test_a_finished_output_is_taken_before_a_likelier_one_without_an_end():
    def chances(at, written):
        return [0.05, 0.95]

    assert search(chances, 1, 3, 1, 0.0)[0] == [[]]


def test_greedy_is_the_argmax_until_the_end():
    vocab, count, batch = 4, 6, 12
    chances = random_chances(vocab, seed=2)
    expected = []
    for at in range(batch):
        written = []
        while len(written) < count:
            row = chances(at, tuple(written))
            token = row.index(max(row))
            if token == END:
                break
            written.append(token)
        expected.append(written)
    found = greedy_search(Table(chances, batch), batch, start=START, end=END, count=count)
    assert found == expected and len({len(output) for output in found}) > 2


def test_greedy_stops_when_each_sample_has_had_its_end():
    def chances(at, written):
        return [0.9, 0.1] if len(written) == 2 * at else [0.1, 0.9]

    table = Table(chances, 2)
    assert greedy_search(table, 2, start=START, end=END, count=6) == [[], [A, A]] and table.calls == 3


@pytest.mark.parametrize("beam", [3, 50])
def test_a_beam_wider_than_the_vocabulary(beam):
    chances = random_chances(2, seed=1)
    assert search(chances, 2, 4, beam, 0.6)[0] == [best_of_all(chances, at, 2, 4, 0.6) for at in range(2)]
