// What the library does to a distribution before it draws, in the order that it does it:
// temperature, top-k, top-p. Temperature 0 takes the likeliest token.

/**
 * @param {number[]} logprobs of the whole vocabulary, likeliest first; ties in the order of their ids
 * @returns {Float64Array} probabilities in the same order; 0 where a token cannot be drawn
 */
export function distribution(logprobs, { temperature, topK = 0, topP = 1 }) {
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
  let kept = 0;
  if (topP < 1) {
    let before = 0;
    for (let i = 0; i < n; i++) {
      if (before > topP * total) p[i] = 0;
      else kept += p[i];
      before += p[i];
    }
  } else kept = total;
  for (let i = 0; i < n; i++) p[i] /= kept;
  return p;
}
