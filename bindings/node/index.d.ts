// Declares what it needs of Node, so that it compiles without @types/node, and agrees with it.
declare global {
  interface SymbolConstructor {
    readonly asyncDispose: unique symbol;
  }
}

/**
 * `AbortSignal`, as the DOM's or Node's types declare it; where neither is there, what is needed of
 * one.
 */
export type Signal = typeof globalThis extends { AbortSignal: { prototype: infer S } }
  ? S
  : { readonly aborted: boolean; addEventListener(type: 'abort', listener: () => void): void };

/** Version of the library that was loaded. */
export const version: string;
/** Version of its binary interface. */
export const abiVersion: number;

/** A failure that the library reports; `message` is its sentence. */
export class LlamaError extends Error {
  constructor(status: number, message: string);
  readonly name: 'LlamaError';
  /** `LLAMA_E_*` as in llamabi.h, or `LLAMA_CANCELLED` for a load or an encoding that was stopped. */
  readonly status: number;
  /** The same by name; `ERR_LLAMABI_CLOSED` for the use of a closed model. */
  readonly code: StatusName;
}

export type StatusName =
  | 'LLAMA_CANCELLED'
  | 'LLAMA_E_INVALID_ARGUMENT'
  | 'LLAMA_E_ABI'
  | 'LLAMA_E_IO'
  | 'LLAMA_E_FORMAT'
  | 'LLAMA_E_UNSUPPORTED'
  | 'LLAMA_E_NO_MEMORY'
  | 'LLAMA_E_DEVICE'
  | 'LLAMA_E_DEVICE_MEMORY'
  | 'LLAMA_E_TOO_LONG'
  | 'LLAMA_E_BATCH'
  | 'LLAMA_E_UTF8'
  | 'LLAMA_E_BUSY'
  | 'LLAMA_E_POISONED'
  | 'LLAMA_E_PEER'
  | 'LLAMA_E_INTERNAL'
  | 'LLAMA_E_UNKNOWN'
  | 'ERR_LLAMABI_CLOSED';

export type Dtype = 'auto' | 'f32' | 'f16' | 'bf16' | 'int8' | 'int4' | 'nf4' | 'fp8';
export type LogLevel = 'none' | 'error' | 'warn' | 'info' | 'debug';
export type FinishReason = 'stop' | 'length' | 'cancelled' | 'stop_string' | 'unsafe' | 'time' | 'caller' | 'unread' | 'not_finite';

export interface OpenOptions {
  /**
   * Meta's directory (params.json, consolidated.NN.pth), Hugging Face's (config.json, *.safetensors
   * or pytorch_model.bin), or a GGUF file.
   */
  ckptDir: string;
  /** The model's own. */
  tokenizerPath?: string;
  /** Most tokens of a sequence, prompt included. 512. */
  maxSeqLen?: number;
  /** Most sequences that run at the same time; more calls wait. 8. */
  maxBatchSize?: number;
  /** 0: as many shards as the checkpoint has. Any other number must be that number. */
  modelParallelSize?: number;
  /** 'auto': the best that is usable. */
  device?: 'auto' | 'cpu' | 'cuda';
  deviceIndex?: number;
  /**
   * With device 'cuda' GPUs, by the numbers of deviceIndex, otherwise NUMA nodes, by the numbers of
   * `lscpu`: each gets a rank with its share of the model. A node may be named more than once, a
   * GPU may not. []: one rank.
   */
  devices?: number[];
  /** How long a rank may be silent while others wait for it, then calls fail with LLAMA_E_PEER. 0: 60000. */
  rankTimeoutMs?: number;
  /** Of each rank; 0: as many as affinity mask and cgroup allow. */
  nThreads?: number;
  /** 'auto': as stored. */
  weightsDtype?: Dtype;
  kvDtype?: Dtype;
  /**
   * How exactly the CPU multiplies. 'full' rounds activations so little that it does not show;
   * 'fast' has the fastest arithmetic of the processor, for many sequences. 'auto': 'full', but if
   * maxBatchSize is above 8 (12 for quantised weights with AMX), generated rows are multiplied as
   * those of prompts are.
   */
  precision?: 'auto' | 'full' | 'fast';
  /** Seeds the generator that gives a seed to calls whose own is 0. 1. */
  seed?: number | bigint;
  /**
   * Most bytes of GPU memory that the model allocates; what does not fit is LLAMA_E_DEVICE_MEMORY.
   * 0: as many as are free.
   */
  gpuMemoryBytes?: number | bigint;
  /** Most calls that wait for slots; one more is LLAMA_E_BUSY. 0: 1024. */
  maxWaiting?: number;
  /**
   * How long a sequence whose reader is behind keeps its slot while others wait. Then it is set
   * aside, and goes on when the reader has caught up. 0: 1000.
   */
  maxStallMs?: number;
  /**
   * After how long a stream whose reader is behind and takes no event ends as 'unread'. 0: 60000.
   * Infinity: never.
   */
  maxUnreadMs?: number;
  /**
   * How long a step should take at most, in milliseconds, that computes a chunk of a prompt beside
   * running streams: about the longest time between two of their tokens while prompts arrive. 100.
   */
  maxStepMs?: number;
  /**
   * Most bytes of host memory for sequences that `maxStallMs` sets aside. Where it is not enough,
   * the stream that has gone unread the longest ends as 'unread'. 0: as many as the KV cache has.
   */
  stallMemoryBytes?: number | bigint;
  /** Text of a Jinja template for chats, instead of the model's. */
  chatTemplate?: string;
  /** What `strftime_now` of a template sees, in seconds since 1970; 0: the clock. */
  chatNow?: number;
  /** LoRA adapters, directories, merged into the weights in this order; `scale` (1) weights one. */
  adapters?: (string | { dir: string; scale?: number })[];
  /**
   * A draft model: a smaller checkpoint with the same tokens, loaded beside the model. It guesses
   * at tokens (`speculation`), or the model is contrasted with it (`contrastBeta`).
   */
  draftDir?: string;
  /** 'auto': as stored. */
  draftWeightsDtype?: Dtype;
  draftKvDtype?: Dtype;
  /** A directory of Medusa heads that were trained for the model. They guess at tokens (`speculation`). */
  medusaDir?: string;
  /** Least severe lines that `onLog` hears. 'info'. */
  logLevel?: LogLevel;
  onLog?: (level: LogLevel, message: string) => void;
  /** The fraction read, 0 to 1. Returning false stops the loading, throwing too. */
  onProgress?: (fraction: number) => boolean | void;
  /** Stops the loading: `open` rejects with LLAMA_CANCELLED. */
  signal?: Signal;
}

export interface GenerateOptions {
  // Numbers of llamabi.h, with its documentation (`make header`).
  /**
   * The most tokens to generate for each sequence. 0 generates none and scores the prompt. Default:
   * as many as there is room for.
   */
  maxGenLen?: number;
  /** Temperature: finite and >= 0. 0 takes the most likely token. Default: 0.6. */
  temperature?: number;
  /**
   * Nucleus sampling keeps the most likely tokens until their probabilities exceed this; 0 to 1.
   * Default: 0.9.
   */
  topP?: number;
  /** Keep so many of the most likely tokens. 0: off. */
  topK?: number;
  /**
   * Keep tokens with at least this share of the most likely token's probability, 0 to 1. 0: off.
   */
  minP?: number;
  /**
   * A finite number > 0. It is applied once for each distinct token of prompt and output. 1: off.
   */
  repetitionPenalty?: number;
  /** The same seed gives the same text. 0 means the next number of the handle's generator. */
  seed?: number | bigint;
  /**
   * How many of the most likely tokens to report for each token, up to the vocabulary. 0: none.
   */
  topLogprobs?: number;
  /**
   * A prompt takes pages from the prefix cache only if they are of calls with the same salt. So
   * neither `cachedTokens` nor the time to the first token tells what callers with another salt
   * have sent. Any number will do, and results do not depend on it. All callers that give 0 share
   * their pages.
   */
  cacheSalt?: number | bigint;
  /**
   * Sequences that continue each prompt, 1 to maxBatchSize; 0 means 1. Sequence `i *
   * numReturnSequences + j` is the j-th of prompt i, in results, events and random draws. The
   * outcome is, to the bit, that of a call that has each prompt so many times in a row. But the
   * prompt is computed once, and all of its sequences begin together if there are slots for all.
   */
  numReturnSequences?: number;
  /**
   * A number above 1 asks for a beam search with so many beams for each prompt, up to maxBatchSize;
   * 0 and 1 ask for none. The sequences of a prompt are then its best numReturnSequences results,
   * best first; there are at most numBeams. A search takes the likeliest continuations by their
   * sums of log probabilities, after penalties, biases, bans and grammar. Temperature and the
   * filters of draws have no effect. Its TOKEN events come at its end, and topLogprobs is at most
   * 128.
   */
  numBeams?: number;
  /**
   * So many tokens are generated before an end-of-sequence token or one of `stopTokens` is
   * possible; at most `maxGenLen`. A stop string ends a sequence at any length. Default: 0.
   */
  minGenLen?: number;
  /**
   * Prompt and output together have no run of so many tokens twice: a token that would complete
   * such a run is impossible. 0: off.
   */
  noRepeatNgramSize?: number;
  /**
   * OpenAI's presence penalty: subtracted from the logit of every token that the output has.
   * Finite. Default: 0.
   */
  presencePenalty?: number;
  /**
   * OpenAI's frequency penalty: subtracted from the logit of a token as often as the output has the
   * token. Finite. Default: 0.
   */
  frequencyPenalty?: number;
  /**
   * Typical sampling: of the tokens that the filters above leave, keep those whose surprise -ln p
   * is nearest to the entropy, until their probabilities reach this; 0 to 1. 0: off.
   */
  typicalP?: number;
  /**
   * After that, drop tokens less probable than this; 0 to below 1. The most likely token stays. 0:
   * off.
   */
  epsilonCutoff?: number;
  /**
   * After that, drop tokens that are less probable than this and less probable than its square root
   * times exp(-entropy); 0 to below 1. The most likely token stays. 0: off.
   */
  etaCutoff?: number;
  /**
   * So many milliseconds after the call, each of its sequences ends with `'time'`, when the step
   * that is under way has ended. This includes a sequence that still waits for a slot. A text that
   * is being encoded is encoded first; that time counts. 0: never.
   */
  maxTimeMs?: number;
  /** The LoRA adapter with which the sequences are computed: an id of `addAdapter`. 0: none. */
  adapter?: number;
  /**
   * The score of a beam is its sum of log probabilities, divided by its length to this power. Above
   * 0, long beams gain. Finite, and only with numBeams. Default: 1.
   */
  lengthPenalty?: number;
  /**
   * 0: as many guesses in a step as measurements say that pay, often none. 1 to 16: always so many,
   * wherever something is found and the step has room.
   */
  draftLen?: number;
  /**
   * Contrastive decoding with the draft model (`draftDir`): a token is chosen from `(1 +
   * contrastBeta) * logit - contrastBeta * logit of the draft model`, in float32, before penalties,
   * filters and draw. So what both models say counts less, and what only the larger one knows
   * counts more; 0.5 is usual. Log probabilities stay the model's. The draft model drafts nothing
   * then. Finite, at least 0, and 0 with beams. Default: 0, off.
   */
  contrastBeta?: number;
  /**
   * Only tokens count that have, in the model, at least this share of the probability of the most
   * likely token that nothing forbids: 0 to 1; 0 means 0.1. Only with contrastBeta.
   */
  contrastAlpha?: number;
  // End of numbers.
  /** Texts that end a sequence and are cut off. */
  stop?: string | string[];
  /** Put the prompt's tokens in front. */
  echo?: boolean;
  /** Report the log probability of each token. */
  logprobs?: boolean;
  /**
   * When a beam search is over that has found numBeams: false: when the best running beam, ending
   * here, would not be among them; true: at once; 'never': when no running beam can get among them
   * any more. false.
   */
  earlyStopping?: boolean | 'never';
  /** Groups of phrases: every result of a beam search has one phrase of each group. */
  forceWords?: readonly (readonly Tokens[])[];
  /** Report the beams of every step of a search. */
  beamEvents?: boolean;
  /** The text is of this language. Given inline, it is compiled once for as long as it is among the last 64. */
  grammar?: Grammar | GrammarSource;
  /** Added to the logits of tokens; -Infinity makes one impossible. */
  logitBias?: readonly (readonly [token: number, bias: number])[];
  /** End a sequence as an end-of-sequence token does, with ignoreEos too. */
  stopTokens?: Tokens;
  /** Sequences of tokens that are not completed. */
  badWords?: readonly Tokens[];
  /** Guess at the tokens that come, so that one step computes several: results do not depend on it, the time does. 'ngram': what followed the last tokens before; 'draft': what the draft model would choose; 'medusa': what Medusa heads would choose; 'auto': whatever there is. 'off'. */
  speculation?: 'off' | 'auto' | 'ngram' | 'draft' | 'medusa';
  /** A text that the output may repeat in parts, as an edited file repeats the old one. */
  predicted?: Tokens;
  /** Fail with LLAMA_E_BUSY rather than wait for a free slot. */
  noWait?: boolean;
  /** Go on after an end-of-sequence token. */
  ignoreEos?: boolean;
  /** Show special tokens in texts, but for the one that ends a sequence. */
  special?: boolean;
  /**
   * Asked at every generated token, on this thread: whether it is the last of its sequence, which
   * then ends as 'caller'. `tokens` are the prompt's, `promptTokens` of them, and the output's so
   * far. Of a stream it is asked before the token's event is read. What it throws stops the call,
   * and the call rejects with it.
   */
  shouldStop?: (tokens: Int32Array, index: number, promptTokens: number) => boolean;
  /** Stops the call. That is no error: what was generated so far is the result, its finishReason 'cancelled'. */
  signal?: Signal;
}

/** A language, by one of these. */
export type GrammarSource =
  /** JSON values of a JSON Schema: the schema, or its text. */
  | { jsonSchema: object | boolean | string }
  /** Any JSON object. */
  | { json: true }
  /** Texts that a regular expression (of Rust's regex crate) matches as a whole. */
  | { regex: string }
  /** A grammar in llguidance's dialect of Lark. */
  | { lark: string }
  /** One of these texts. */
  | { choice: readonly string[] };

/** A language that texts are kept in, made by `model.grammar()`. */
export declare class Grammar {
  private constructor();
  /** Which tokens may follow these generated ones: bit t % 32 of word t >> 5. */
  mask(tokens?: Tokens): Uint32Array;
}

export interface Message {
  role: 'system' | 'user' | 'assistant';
  content: string;
}
export type Tokens = Int32Array | readonly number[];

/** A token and the natural logarithm of its probability under the model. */
export interface Alternative {
  token: number;
  logprob: number;
}

/** Figures of one sequence. */
export interface Stats {
  promptTokens: number;
  /** Of those, taken from the prefix cache. */
  cachedTokens: number;
  generatedTokens: number;
  /** From the call to the first step. */
  queueMs: number;
  /** From the call to the first generated token; 0: there was none. */
  firstTokenMs: number;
  totalMs: number;
  /** Tokens that were guessed at, and how many of these guesses were right. */
  draftedTokens: number;
  acceptedTokens: number;
}

export interface Sequence {
  text: string;
  /** Generated, after the prompt's if echoed, without the end-of-sequence token. */
  tokens: Int32Array;
  /** One per token; null unless asked for. */
  logprobs: Float32Array | null;
  /** Most likely tokens at each position, best first; null unless asked for. */
  top: Alternative[][] | null;
  finishReason: FinishReason;
  /**
   * Of a beam search: the sum of log probabilities that it compared, and that over the length to
   * the power of `lengthPenalty`, by which results are ranked; -Infinity for a result that it did
   * not have. Else both the sum of the log probabilities; 0 unless `logprobs` was asked for.
   */
  sumLogprob: number;
  score: number;
  stats: Stats;
}

/** A part of a prompt. `question`: it stays, and segments to be compressed are ranked by how much they help to expect it. */
export interface Segment {
  text: string;
  kind: 'keep' | 'compress' | 'question';
}

/** How much `compress` leaves; see `llama_compress_options`. */
export interface CompressOptions {
  /** How many tokens all segments have together afterwards. 0 (default): `rate` says it. */
  targetTokens?: number;
  /** The share of all tokens that is left; 0.5. */
  rate?: number;
  /** How many tokens are looked at together; 100. */
  window?: number;
  /** The first pass, which leaves out whole segments, leaves this many times the tokens that may be left; 2. */
  coarse?: number;
  /** Tokens with a newline stay before others. */
  keepNewlines?: boolean;
  /** Tokens with a digit stay before others. */
  keepDigits?: boolean;
  signal?: Signal;
}

export interface TokenEvent {
  type: 'token';
  /** Which sequence of the call. */
  index: number;
  token: number;
  /** 0 unless `logprobs` was asked for. */
  logprob: number;
  /** Text that became certain; often empty, never half a character. */
  text: string;
  /** Empty unless `topLogprobs` was asked for. */
  top: Alternative[];
  /** What became of the guess at it (`speculation`); null: there was none. */
  draft: 'accepted' | 'rejected' | null;
}
export interface FinishEvent {
  type: 'finish';
  index: number;
  /** Text that had been held back; of an unsafe dialog, the sentence that says so. */
  text: string;
  finishReason: FinishReason;
  /** As of a `Sequence`. */
  sumLogprob: number;
  score: number;
  stats: Stats;
}
/** A beam went on by a token, or has finished with it, if `beamEvents` was asked for. */
export interface BeamEvent {
  type: 'beam';
  /** The first sequence of the prompt. */
  index: number;
  /** Its place: those that run on from 0, best first; those that have finished from numBeams on. */
  beam: number;
  /** The place of what it goes on from, in the step before. */
  parent: number;
  /** The step of the search, from 1: as many tokens has the beam. */
  step: number;
  token: number;
  sumLogprob: number;
  score: number;
  /** Why it has finished; null: it runs on. */
  finishReason: FinishReason | null;
}
export type Event = TokenEvent | FinishEvent | BeamEvent;

/**
 * Events of a call that starts with the first `next`. One reader at a time; a reader that falls
 * behind makes the call wait. Leaving the loop ends the call.
 */
export interface Stream extends AsyncIterableIterator<Event> {
  /**
   * Ends one sequence, as 'caller', and no other. Events of it that are on their way already still
   * come; to end at a certain token there is `shouldStop`.
   */
  stop(index?: number): void;
  return(value?: unknown): Promise<IteratorResult<Event>>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A message in OpenAI's shape: perhaps also `tool_calls`, `tool_call_id`, `name`, `reasoning_content`. */
export interface ChatMessage {
  role: string;
  content?: string | null | readonly { type: 'text'; text: string }[];
  [key: string]: unknown;
}

/** A dialog for the model's chat template, with what surrounds it. */
export interface ChatRequest {
  messages: readonly ChatMessage[];
  /** `{ type: 'function', function: ... }` each; a text is JSON, which is taken as it is. */
  tools?: readonly object[] | string;
  /** What the template sees beside: `enable_thinking`, `date_string`, ...; or these as JSON. */
  variables?: Readonly<Record<string, unknown>> | string;
  /** Text of a Jinja template instead of the model's. */
  chatTemplate?: string;
  /** Leave the beginning of the answer out. */
  noGenerationPrompt?: boolean;
  /** Cut behind the last message's content, for the model to go on with it. */
  continueFinal?: boolean;
  /** Make special tokens of their texts in messages, too. */
  parseSpecial?: boolean;
}

/** Weights, tokenizer and key-value cache. Any number of calls at a time; they share batches. */
export class Model {
  private constructor();
  /** Load a model, on a thread of its own. */
  static open(options: OpenOptions): Promise<Model>;
  static open(ckptDir: string, options?: Omit<OpenOptions, 'ckptDir'>): Promise<Model>;

  /** Continue tokens. */
  generate(tokens: Tokens, options?: GenerateOptions): Promise<Sequence>;
  generate(tokens: readonly Tokens[], options?: GenerateOptions): Promise<Sequence[]>;
  /** Continue text. */
  textCompletion(prompt: string, options?: GenerateOptions): Promise<Sequence>;
  textCompletion(prompts: readonly string[], options?: GenerateOptions): Promise<Sequence[]>;
  /** Answer a dialog of plain texts: by the model's chat template, else in Meta's format. */
  chatCompletion(dialog: readonly Message[], options?: GenerateOptions): Promise<Sequence>;
  chatCompletion(dialogs: readonly (readonly Message[])[], options?: GenerateOptions): Promise<Sequence[]>;
  /** Answer messages in OpenAI's shape, by the model's chat template. */
  chat(request: ChatRequest, options?: GenerateOptions): Promise<Sequence>;
  streamChat(request: ChatRequest, options?: GenerateOptions): Stream;
  /**
   * Shortens a prompt: of the segments that are to be compressed (a string is one), the tokens go
   * that the model expects most. Gives what is left of each segment. `signal` ends it with empty
   * sequences.
   */
  compress(segments: readonly (string | Segment)[], options?: CompressOptions): Promise<Sequence[]>;

  /** The first three, as events. */
  stream(
    input: string | Tokens | readonly Message[] | readonly string[] | readonly Tokens[] | readonly (readonly Message[])[],
    options?: GenerateOptions
  ): Stream;

  /**
   * `maxTokens`: fails with LLAMA_E_TOO_LONG as soon as there are certain to be more. `special`:
   * special and added tokens that the text spells become these tokens; without it they are words.
   */
  encode(text: string, options?: EncodeOptions): Int32Array;
  encodeDialog(messages: readonly Message[]): Int32Array;
  decode(tokens: Tokens): string;
  /**
   * The same three on a thread of their own, for texts that would hold up the event loop.
   * `signal` stops the encoding: `encodeAsync` rejects with LLAMA_CANCELLED.
   */
  encodeAsync(text: string, options?: EncodeOptions & { signal?: Signal }): Promise<Int32Array>;
  encodeDialogAsync(messages: readonly Message[]): Promise<Int32Array>;
  /** Tokens of a chat, as `chat` gives them to the model. */
  encodeChatAsync(request: ChatRequest): Promise<Int32Array>;
  /** The text that the chat template makes of a chat. */
  renderChatAsync(request: ChatRequest): Promise<string>;
  decodeAsync(tokens: Tokens): Promise<string>;
  /** What a token contributes in the middle of a text; need not be UTF-8 on its own. */
  tokenBytes(token: number): Uint8Array;

  /** Compile a grammar, so that calls need not. Rejects with LLAMA_E_INVALID_ARGUMENT where it is none. */
  grammar(source: GrammarSource): Promise<Grammar>;

  /**
   * Loads a LoRA adapter for calls to choose (`adapter`), weighted by `scale` (1). Gives its id;
   * rejects with LLAMA_CANCELLED if the model is closed meanwhile.
   */
  addAdapter(dir: string, scale?: number): Promise<number>;
  /** No new call may name the adapter; its memory is free when the last call that runs with it has ended. */
  dropAdapter(id: number): void;
  info(): Info;
  /** Totals since the model was opened. */
  timings(): Timings;
  /** What is known of a rank. A model without several has one, number 0. */
  rank(number: number): Rank;
  /** Throws what has made the model unusable, if anything has: a rank that is gone, for example. */
  checkHealth(): void;

  /** End all calls and streams that have begun as cancelled, and free the memory. Again: nothing. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface EncodeOptions {
  bos?: boolean;
  eos?: boolean;
  special?: boolean;
  maxTokens?: number;
}

export interface Info {
  vocabSize: number;
  dim: number;
  nLayers: number;
  nHeads: number;
  nKvHeads: number;
  headDim: number;
  ffnDim: number;
  maxSeqLen: number;
  maxBatchSize: number;
  /** -1: none. */
  bosId: number;
  /** The first of `eosIds`, -1: none. */
  eosId: number;
  /** -1: none. */
  padId: number;
  device: 'cpu' | 'cuda';
  deviceName: string;
  weightsDtype: Dtype | 'k4' | 'k5' | 'k6' | 'k8';
  kvDtype: Dtype;
  weightBytes: number;
  kvBytes: number;
  /** Whether the library was built with GPU kernels. */
  gpuKernels: boolean;
  /** Tokens that end a sequence, any of them. */
  eosIds: number[];
  /** What chat calls make of messages. */
  chatFormat: 'none' | 'llama2' | 'llama3' | 'template';
  /** The model's family: 'llama', 'qwen2'. */
  modelType: string;
  /** What most of the weights are stored as: 'bf16', 'GGUF Q4_K', 'gptq 4 bits'. */
  storedFormat: string;
  /** Ranks that compute the model; `weightBytes` and `kvBytes` are those of all. */
  modelParallelSize: number;
  /** Whether there is a draft model, whose bytes are in weightBytes and kvBytes too. */
  hasDraft: boolean;
  /** Number of Medusa heads, whose bytes are in weightBytes too. */
  medusaHeads: number;
}

export interface Rank {
  rank: number;
  device: 'cpu' | 'cuda';
  /** Its process, on `host`. */
  pid: number;
  weightBytes: number;
  kvBytes: number;
  /** How long it has waited for and exchanged numbers with other ranks. */
  exchangeMs: number;
  /** How long a rank in another process has given no sign of life. */
  silentMs: number;
  host: string;
  deviceName: string;
}

export interface Timings {
  /** Sequences running now. */
  running: number;
  /** Sequences waiting for a slot now. */
  waiting: number;
  /** Sequences that have given their slot up now, because their reader is behind. */
  parked: number;
  loadMs: number;
  /** Time in steps that had prompt tokens. */
  prefillMs: number;
  /** Time in steps that had none. */
  decodeMs: number;
  promptTokens: number;
  cachedTokens: number;
  generatedTokens: number;
  steps: number;
  pagesUsed: number;
  pagesTotal: number;
  /** Masks of grammars that were computed, the time that took, and how much of it generation waited for. */
  masks: number;
  maskMs: number;
  maskWaitMs: number;
  /** Tokens that were guessed at, and how many of these guesses were right. */
  draftedTokens: number;
  acceptedTokens: number;
}
