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

/** Of a file or directory; as node:fs takes it, also a `file:` URL. */
export type Path = string | { readonly href: string; readonly protocol: string };

import type { CompressOptions, EncodeOptions, GenerateOptions, GrammarSource, OpenOptions } from './options';

export * from './options';

/** Version of the library that was loaded. */
export const version: string;
/** Version of its binary interface. */
export const abiVersion: number;

/** A failure that the library reports; `message` is its sentence. */
export class LlamaError extends Error {
  constructor(status: number, message: string);
  readonly name: 'LlamaError';
  /**
   * `LLAMA_E_*` as in llamabi.h, or `LLAMA_CANCELLED` for a load or an encoding that was stopped.
   */
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

// Dtypes of llamabi.h
export type Dtype = 'auto' | 'f32' | 'f16' | 'bf16' | 'int8' | 'int4' | 'nf4' | 'fp8';
/** Of the weights of files that have them. */
export type DtypeOfFiles = 'k4' | 'k8' | 'k5' | 'k6' | 'iq4' | 'uint4';
// End of dtypes
export type LogLevel = 'none' | 'error' | 'warn' | 'info' | 'debug';
export type FinishReason = 'stop' | 'length' | 'cancelled' | 'stop_string' | 'unsafe' | 'time' | 'caller' | 'unread' | 'not_finite';

/** A language that texts are kept in, made by `model.grammar()`. */
export declare class Grammar {
  private constructor();
  /** Which tokens may follow these generated ones: bit t % 32 of word t >> 5. */
  mask(tokens?: Tokens): Uint32Array;
}

export interface Message {
  /** Other roles, of a chat template: `chat`. */
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

/**
 * A part of a prompt. `question`: it stays, and segments to be compressed are ranked by how much
 * they help to expect it.
 */
export interface Segment {
  text: string;
  kind: 'keep' | 'compress' | 'question';
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
   * come; to end at a certain token there is `shouldStop`. An index that the call does not have is
   * LLAMA_E_INVALID_ARGUMENT.
   */
  stop(index?: number): void;
  return(value?: unknown): Promise<IteratorResult<Event>>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * A message in OpenAI's shape: perhaps also `tool_calls`, `tool_call_id`, `name`,
 * `reasoning_content`.
 */
export interface ChatMessage {
  role: string;
  content?: string | null | readonly { type: 'text'; text: string }[];
  // Were it `unknown`, no value of an interface could be assigned, as `Message` is and those of
  // other packages are.
  [key: string]: any;
}

/** A dialog for the model's chat template, with what surrounds it. */
export interface ChatRequest {
  messages: readonly ChatMessage[];
  /** `{ type: 'function', function: ... }` each; a text is JSON, which is taken as it is. */
  tools?: readonly object[] | string;
  /** What the template sees beside: `enable_thinking`, `date_string`, ...; or these as JSON. */
  variables?: Readonly<Record<string, any>> | string;
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
  static open(ckptDir: Path, options?: Omit<OpenOptions, 'ckptDir'>): Promise<Model>;

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

  /**
   * Compile a grammar, so that calls need not. Rejects with LLAMA_E_INVALID_ARGUMENT where it is
   * none.
   */
  grammar(source: GrammarSource): Promise<Grammar>;

  /**
   * Loads a LoRA adapter for calls to choose (`adapter`), weighted by `scale` (1). Gives its id;
   * rejects with LLAMA_CANCELLED if the model is closed meanwhile.
   */
  addAdapter(dir: Path, scale?: number): Promise<number>;
  /**
   * No new call may name the adapter; its memory is free when the last call that runs with it has
   * ended.
   */
  dropAdapter(id: number): void;
  info(): Info;
  /** Totals since the model was opened. */
  timings(): Timings;
  /** What is known of a rank. A model without several has one, number 0. */
  rank(number: number): Rank;
  /** Throws what has made the model unusable, if anything has: a rank that is gone, for example. */
  checkHealth(): void;

  /**
   * End all calls and streams that have begun as cancelled, and free the memory. Again: nothing.
   */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
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
  weightsDtype: Dtype | DtypeOfFiles;
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
  /**
   * Masks of grammars that were computed, the time that took, and how much of it generation waited
   * for.
   */
  masks: number;
  maskMs: number;
  maskWaitMs: number;
  /** Tokens that were guessed at, and how many of these guesses were right. */
  draftedTokens: number;
  acceptedTokens: number;
}
