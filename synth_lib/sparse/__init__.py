"""Patterns: masks that choose the keys. A synthesizer changes S and keeps every key; its neighbours change the mask.

    layer.pattern = patterns.Strided(16)      # from places: Child et al. 2019, arXiv 1904.10509
    layer.pattern = Hashed(d_head, head)      # from content: the keys whose hashes agree with the query's
    layer.pattern = Routed(d_head, head, 8)   # from content: the keys of the query's cluster

They work with every S. `groups.attend(layer, x)` computes the same y for the chosen keys alone, and `flex.attend` by
torch's FlexAttention, for a card.
"""
