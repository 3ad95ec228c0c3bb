"""Synthesizers: attention whose weights are synthesized instead of compared (Tay et al., arXiv 2005.00743).

Y = softmax( S(X) + mask ) G(X): read shapes, scores, masks, attention, in this order.
"""
