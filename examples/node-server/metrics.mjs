// Counters, and Prometheus' text of them.
const BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

export class Metrics {
  abandoned = 0;
  #requests = new Map(); // labels -> count
  #buckets = Array(BOUNDS.length + 1).fill(0);
  #sum = 0;

  count(route, code) {
    const labels = `route="${route}",code="${code}"`;
    this.#requests.set(labels, (this.#requests.get(labels) ?? 0) + 1);
  }

  firstToken(seconds) {
    const i = BOUNDS.findIndex((bound) => seconds <= bound);
    this.#buckets[i < 0 ? BOUNDS.length : i]++;
    this.#sum += seconds;
  }

  text(now) {
    const lines = [];
    const head = (name, type, help) => lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`);
    const one = (name, type, help, value) => {
      head(name, type, help);
      lines.push(`${name} ${value}`);
    };
    one('llamabi_sequences_running', 'gauge', 'Sequences that run now.', now.running);
    one('llamabi_sequences_waiting', 'gauge', 'Sequences that wait for a slot.', now.waiting);
    one('llamabi_kv_pages_used', 'gauge', 'Pages of the KV cache that sequences hold.', now.pagesUsed);
    one('llamabi_kv_pages_total', 'gauge', 'Pages of the KV cache.', now.pagesTotal);
    one('llamabi_prompt_tokens_total', 'counter', 'Prompt tokens of all requests.', now.promptTokens);
    one('llamabi_cached_tokens_total', 'counter', 'Prompt tokens taken from the prefix cache.', now.cachedTokens);
    one('llamabi_generated_tokens_total', 'counter', 'Tokens generated.', now.generatedTokens);
    one('llamabi_steps_total', 'counter', 'Passes through the model.', now.steps);
    one('llamabi_prefill_seconds_total', 'counter', 'Time in steps with prompt tokens.', now.prefillMs / 1000);
    one('llamabi_decode_seconds_total', 'counter', 'Time in steps without prompt tokens.', now.decodeMs / 1000);
    one('llamabi_abandoned_requests_total', 'counter', 'Requests whose client left.', this.abandoned);
    const name = 'llamabi_first_token_seconds';
    head(name, 'histogram', 'From a request to the first token of each of its sequences that has ended.');
    let total = 0;
    this.#buckets.forEach((count, i) => lines.push(`${name}_bucket{le="${BOUNDS[i] ?? '+Inf'}"} ${(total += count)}`));
    lines.push(`${name}_sum ${this.#sum}`, `${name}_count ${total}`);
    one('process_resident_memory_bytes', 'gauge', 'Resident memory.', process.memoryUsage.rss());
    head('llamabi_requests_total', 'counter', 'Requests answered, by route and status.');
    for (const [labels, count] of [...this.#requests].sort()) lines.push(`llamabi_requests_total{${labels}} ${count}`);
    return `${lines.join('\n')}\n`;
  }
}
