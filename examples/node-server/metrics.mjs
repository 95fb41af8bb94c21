// Counters and histograms, and Prometheus' text of them.

// Upper bounds of buckets, in seconds.
const WAITS = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120];
const GAPS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const DURATIONS = [0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];

class Histogram {
  #bounds;
  #counts;
  #sum = 0;

  constructor(bounds) {
    this.#bounds = bounds;
    this.#counts = Array(bounds.length + 1).fill(0);
  }

  observe(seconds) {
    const i = this.#bounds.findIndex((bound) => seconds <= bound);
    this.#counts[i < 0 ? this.#bounds.length : i]++;
    this.#sum += seconds;
  }

  // `labels` is what stands before `le`, with a comma.
  *lines(name, labels = '') {
    let total = 0;
    for (const [i, count] of this.#counts.entries()) {
      total += count;
      yield `${name}_bucket{${labels}le="${this.#bounds[i] ?? '+Inf'}"} ${total}`;
    }
    const own = labels === '' ? '' : `{${labels.slice(0, -1)}}`;
    yield `${name}_sum${own} ${this.#sum}`;
    yield `${name}_count${own} ${total}`;
  }
}

export class Metrics {
  abandoned = 0;
  betweenTokens = new Histogram(GAPS);
  #queue = new Histogram(WAITS);
  #firstToken = new Histogram(WAITS);
  #durations = new Map(); // route -> Histogram
  #requests = new Map(); // labels -> count

  // A request has been answered.
  request(route, code, seconds) {
    const labels = `route="${route}",code="${code}"`;
    this.#requests.set(labels, (this.#requests.get(labels) ?? 0) + 1);
    if (!this.#durations.has(route)) this.#durations.set(route, new Histogram(DURATIONS));
    this.#durations.get(route).observe(seconds);
  }

  // A sequence has ended.
  sequence({ queueMs, firstTokenMs }) {
    this.#queue.observe(queueMs / 1000);
    if (firstTokenMs > 0) this.#firstToken.observe(firstTokenMs / 1000);
  }

  text(now) {
    const lines = [];
    const head = (name, type, help) => lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`);
    const one = (name, type, help, value) => {
      head(name, type, help);
      lines.push(`${name} ${value}`);
    };
    const histogram = (name, help, buckets) => {
      head(name, 'histogram', help);
      lines.push(...buckets.lines(name));
    };
    one('llamabi_sequences_running', 'gauge', 'Sequences that run now.', now.running);
    one('llamabi_sequences_waiting', 'gauge', 'Sequences that wait for a slot.', now.waiting);
    one('llamabi_sequences_parked', 'gauge', 'Sequences that have given their slots up: nobody reads their answers.', now.parked);
    one('llamabi_kv_pages_used', 'gauge', 'Pages of the KV cache that sequences hold.', now.pagesUsed);
    one('llamabi_kv_pages', 'gauge', 'Pages of the KV cache.', now.pagesTotal);
    one('llamabi_kv_usage', 'gauge', 'Share of the KV cache that sequences hold, 0 to 1.', now.pagesUsed / Math.max(now.pagesTotal, 1));
    one('llamabi_prompt_tokens_total', 'counter', 'Prompt tokens of all requests.', now.promptTokens);
    one('llamabi_cached_tokens_total', 'counter', 'Prompt tokens taken from the prefix cache.', now.cachedTokens);
    one('llamabi_generated_tokens_total', 'counter', 'Tokens generated.', now.generatedTokens);
    one('llamabi_drafted_tokens_total', 'counter', 'Tokens that were guessed at.', now.draftedTokens);
    one('llamabi_accepted_tokens_total', 'counter', 'Guesses that were right.', now.acceptedTokens);
    one('llamabi_steps_total', 'counter', 'Passes through the model.', now.steps);
    one('llamabi_prefill_seconds_total', 'counter', 'Time in steps with prompt tokens.', now.prefillMs / 1000);
    one('llamabi_decode_seconds_total', 'counter', 'Time in steps without prompt tokens.', now.decodeMs / 1000);
    one('llamabi_abandoned_requests_total', 'counter', 'Requests whose client left before it had all of the answer.', this.abandoned);
    histogram('llamabi_queue_seconds', 'From the call to the first step, of each sequence that has ended.', this.#queue);
    histogram('llamabi_first_token_seconds', 'From the call to the first token, of each sequence that has ended.', this.#firstToken);
    histogram('llamabi_between_tokens_seconds', 'From one generated token of a sequence to the next, as they come out of the model.', this.betweenTokens);
    head('llamabi_request_duration_seconds', 'histogram', 'From a request to the end of its answer, by route.');
    for (const [route, buckets] of [...this.#durations].sort(([a], [b]) => (a < b ? -1 : 1))) {
      lines.push(...buckets.lines('llamabi_request_duration_seconds', `route="${route}",`));
    }
    one('process_resident_memory_bytes', 'gauge', 'Resident memory.', process.memoryUsage.rss());
    head('llamabi_requests_total', 'counter', 'Requests answered, by route and status.');
    for (const [labels, count] of [...this.#requests].sort()) lines.push(`llamabi_requests_total{${labels}} ${count}`);
    return `${lines.join('\n')}\n`;
  }
}
