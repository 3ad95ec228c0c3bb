"""From the logits of a model to tokens: drawing one token, and searching a whole output.

    following = sample(logits[:, -1], temperature=0.8, top_p=0.9)       # logits: batch vocab -> batch 1
"""

from numbers import Real

import torch

from synth_lib.shapes import check_number, check_whole_number


def sample(logits, temperature=1.0, *, top_k=None, top_p=None, generator=None):
    """Draw one token a sample from logits "batch vocab" -> int64 "batch 1".

    The logits are divided by `temperature`, then the rules below forbid tokens, and one is drawn from the softmax
    over the others.

    Args:
        temperature: 1 draws from the model's own probabilities, less prefers the likely tokens, 0 always takes
            the most likely one.
        top_k: only the k most likely tokens may be drawn; the first of them in the vocabulary, if some are equal.
        top_p: only the most likely tokens may be drawn, as few as reach the probability p together. The most likely
            one always may. With top_k, those that it leaves have the probability 1 together.
        generator: a torch.Generator on the CPU (default: torch's own), where the token is drawn: so a seed means
            the same on every device.

    Raises ValueError: an option is out of its range; logits are not "batch vocab", or NaN or infinite.
    """
    check_sampling(temperature, top_k, top_p)
    if logits.ndim != 2:
        raise ValueError(f'logits must be "batch vocab", but are {tuple(logits.shape)}: take one position, [:, -1]')
    logits_on_cpu = logits.double().cpu()
    if not logits_on_cpu.amax(dim=-1).isfinite().all():
        raise ValueError("logits must hold no NaN, and in each row a finite largest number: has the model diverged?")
    if temperature == 0:
        return logits_on_cpu.argmax(dim=-1, keepdim=True).to(logits.device)
    scaled = (logits_on_cpu - logits_on_cpu.amax(dim=-1, keepdim=True)) / temperature  # at most 0: cannot overflow
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    forbidden = torch.zeros_like(scaled, dtype=torch.bool)  # in the order of likelihood
    if top_k is not None:
        forbidden[:, top_k:] = True
    if top_p is not None:
        probability = ordered.masked_fill(forbidden, float("-inf")).softmax(dim=-1)
        before = probability.cumsum(dim=-1) - probability  # of all tokens that are more likely
        forbidden |= before >= top_p
    scaled[torch.zeros_like(forbidden).scatter(-1, order, forbidden)] = float("-inf")
    return torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator).to(logits.device)


def check_sampling(temperature=1.0, top_k=None, top_p=None):
    """Raise the ValueError of `sample` if one of these options does not fit."""
    check_number("temperature", temperature)
    if top_k is not None:
        check_whole_number("top_k", top_k)
    if top_p is not None and not (isinstance(top_p, Real) and top_p is not True and 0 < top_p <= 1):
        raise ValueError(f"top_p is {top_p!r}, but must be above 0 and at most 1")


def greedy_search(step, batch, *, start, end, count):
    """The most likely token at every position, until `end` -> a list of `batch` token lists, without start and end.

    step(tokens "batch 1", None) -> logits "batch vocab" for the position after these tokens. An output without
    an end after `count` tokens stops there.
    """
    tokens = torch.full((batch, 1), start)
    written = []
    ended = torch.zeros(batch, dtype=torch.bool)
    for _ in range(count):
        tokens = step(tokens, None).argmax(dim=-1, keepdim=True).cpu()
        written.append(tokens)
        ended |= tokens[:, 0] == end
        if ended.all():
            break
    rows = torch.cat(written, dim=1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def length_factor(length, length_penalty):
    """((5 + length) / 6) ^ length_penalty: what the log-probability of an output of that many tokens is divided by.

    Every token makes an output less likely; without it (0) short outputs would win. `length` counts the end token.
    """
    return ((5 + length) / 6) ** length_penalty


def beam_search(step, batch, *, start, end, count, beam, length_penalty):
    """The best output that a beam search finds -> a list of `batch` token lists, without start and end.

    At every position the `beam` most likely beginnings of each sample go on. An output is judged by its log-probability
    divided by `length_factor`. A sample stops when no beginning of its beam can still overtake its best finished
    output: log-probabilities only fall, and no output is longer than `count`.

    Args:
        step: step(tokens "(batch beam) 1", rows) -> logits "(batch beam) vocab" for the position after these tokens.
            What is remembered of the beginnings has to be put into the order `rows`, int64 "(batch beam)", first; None
            means as it is.
        count: the longest output, its end included. If none has ended by then, the best beginning is the output.
    """
    tokens = torch.full((batch * beam, 1), start)
    written = torch.empty(batch, beam, 0, dtype=torch.int64)
    # All beginnings of a sample are the same at first: only one of them may go on.
    total = torch.full((batch, beam), float("-inf"), dtype=torch.float64)
    total[:, 0] = 0.0
    best_finished = [(float("-inf"), None)] * batch  # (score, output) of each sample
    running = [True] * batch
    rows = None
    for length in range(1, count + 1):
        log_probability = step(tokens, rows).double().cpu().log_softmax(dim=-1)
        vocab = log_probability.shape[-1]
        candidates = (total[:, :, None] + log_probability.view(batch, beam, vocab)).flatten(1)
        # At most `beam` of the best 2 * beam candidates can be an end: enough are left to go on.
        scores, chosen = candidates.topk(min(2 * beam, candidates.shape[1]), dim=1)
        unfinished = torch.zeros(batch, beam, dtype=torch.int64)
        for row, (row_scores, row_candidates) in enumerate(zip(scores.tolist(), chosen.tolist(), strict=True)):
            beams = 0
            for score, candidate in zip(row_scores, row_candidates, strict=True):
                parent, token = divmod(candidate, vocab)
                if token == end and running[row]:
                    score = score / length_factor(length, length_penalty)
                    if score > best_finished[row][0]:
                        best_finished[row] = (score, written[row, parent].tolist())
                elif token != end and beams < beam:
                    unfinished[row, beams], total[row, beams] = candidate, score
                    beams += 1
            best_possible = total[row].max().item() / length_factor(count, length_penalty)
            running[row] = running[row] and best_possible > best_finished[row][0]
        parent, token = unfinished // vocab, unfinished % vocab
        written = torch.cat([written.gather(1, parent[:, :, None].expand_as(written)), token[:, :, None]], dim=2)
        if not any(running):
            break
        tokens = token.view(-1, 1)
        rows = (parent + torch.arange(batch)[:, None] * beam).view(-1)
    return [written[row, 0].tolist() if output is None else output for row, (_, output) in enumerate(best_finished)]
