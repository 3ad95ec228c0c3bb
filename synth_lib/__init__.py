"""Synthesizers: attention whose weights are synthesized instead of compared (Tay et al., arXiv 2005.00743).

Y = softmax( S(X) + mask ) G(X). The files that lie flat here are the subject. Read them in this order:

    shapes      named axes: check a tensor against "batch head query key"
    scores      S, each synthesizer in one class
    masks       which keys a query may attend to
    fast        the kernels: the same result without the map
    attention   the layer, across two sequences too, and its cache
    decoding    from logits to tokens
    models      a language model, an encoder-decoder, a classifier
    plots       the pictures

Beside them: text (what models read), lab (experiments), checks (what an exercise calls).
"""
