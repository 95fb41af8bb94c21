// What the library does to a distribution before it draws, in the order that it does it:
// temperature, top-k, top-p, min-p, typical-p. Temperature 0 takes the likeliest token.

/**
 * @param {number[]} logprobs of the whole vocabulary, likeliest first; ties in the order of their
 *   ids
 * @returns {Float64Array} probabilities in the same order; 0 where a token cannot be drawn
 */
export function distribution(logprobs, { temperature, topK = 0, topP = 1, minP = 0, typicalP = 1 }) {
  const n = logprobs.length;
  const p = new Float64Array(n);
  if (n === 0) return p;
  if (temperature === 0) {
    p[0] = 1;
    return p;
  }
  // Ties with the k-th token stay.
  const least = topK > 0 && topK < n ? logprobs[topK - 1] : -Infinity;
  let total = 0;
  for (let i = 0; i < n && logprobs[i] >= least; i++) {
    p[i] = Math.exp((logprobs[i] - logprobs[0]) / temperature);
    total += p[i];
  }
  // A token stays while the mass before it is at most top_p: the one that crosses it still does.
  if (topP < 1) {
    let before = 0;
    for (let i = 0; i < n; i++) {
      const mass = p[i];
      if (before > topP * total) p[i] = 0;
      before += mass;
    }
  }
  // The likeliest has 1 until here.
  for (let i = 0; i < n; i++) if (p[i] < minP) p[i] = 0;
  normalise(p);
  if (typicalP < 1) {
    keepTypical(p, typicalP);
    normalise(p);
  }
  return p;
}

function normalise(p) {
  const total = p.reduce((sum, one) => sum + one, 0);
  for (let i = 0; i < p.length; i++) p[i] /= total;
}

// Keeps the tokens whose surprise is nearest to what is to be expected, while the mass before a
// token is less than `most`; ties with the last one stay.
function keepTypical(p, most) {
  const entropy = p.reduce((sum, one) => (one > 0 ? sum - one * Math.log(one) : sum), 0);
  const distance = (one) => Math.abs(-Math.log(one) - entropy);
  let before = 0;
  let last = 0;
  for (const one of [...p].filter((one) => one > 0).sort((a, b) => distance(a) - distance(b))) {
    if (before >= most) break;
    last = distance(one);
    before += one;
  }
  for (let i = 0; i < p.length; i++) if (p[i] > 0 && distance(p[i]) > last) p[i] = 0;
}
