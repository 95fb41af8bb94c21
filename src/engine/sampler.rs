//! Logits to a token: repetition penalty, temperature, top-k, top-p, min-p, draw.
