// The options of what index.d.ts declares.
import type { Dtype, Grammar, LogLevel, Path, Signal, Tokens } from './index';

export interface OpenOptions {
  /**
   * Meta's directory (params.json, consolidated.NN.pth), Hugging Face's (config.json, *.safetensors
   * or pytorch_model.bin), or a GGUF file.
   */
  ckptDir: Path;
  /** The model's own. */
  tokenizerPath?: Path;
  /** Most tokens of a sequence, prompt included. 512. */
  maxSeqLen?: number;
  /** Most sequences that run at the same time; more calls wait. 8. */
  maxBatchSize?: number;
  /** 0: as many shards as the checkpoint has. Any other number must be that number. */
  modelParallelSize?: number;
  /** 'auto': the best that is usable. */
  device?: 'auto' | 'cpu' | 'cuda';
  /** Which device, if there are several; 0 on the CPU. 0. */
  deviceIndex?: number;
  /**
   * With device 'cuda' GPUs, by the numbers of deviceIndex, otherwise NUMA nodes, by the numbers of
   * `lscpu`: each gets a rank with its share of the model. A node may be named more than once, a
   * GPU may not. []: one rank.
   */
  devices?: readonly number[];
  /**
   * How long a rank may be silent while others wait for it, then calls fail with LLAMA_E_PEER. 0:
   * 60000.
   */
  rankTimeoutMs?: number;
  /**
   * Threads of the CPU, of each rank, at most 1024; 0: as many as affinity mask and cgroup allow.
   */
  nThreads?: number;
  /** 'auto': as stored. */
  weightsDtype?: Dtype;
  /** Of the KV cache. 'auto': what goes with the weights. */
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
  adapters?: readonly (Path | { readonly dir: Path; readonly scale?: number })[];
  /**
   * A draft model: a smaller checkpoint with the same tokens, loaded beside the model. It guesses
   * at tokens (`speculation`), or the model is contrasted with it (`contrastBeta`).
   */
  draftDir?: Path;
  /** 'auto': as stored. */
  draftWeightsDtype?: Dtype;
  draftKvDtype?: Dtype;
  /**
   * A directory of Medusa heads that were trained for the model. They guess at tokens
   * (`speculation`).
   */
  medusaDir?: Path;
  /** Least severe lines that `onLog` hears. 'info'. */
  logLevel?: LogLevel;
  /**
   * Runs on this thread, a little later. What it throws is an uncaught exception of the process.
   */
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
   * 0, long beams gain. Finite. Without numBeams it has no effect. Default: 1.
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
   * likely token that nothing forbids: 0 to 1; 0 means 0.1. It has no effect without contrastBeta.
   */
  contrastAlpha?: number;
  // End of numbers.
  /** Texts that end a sequence and are cut off. */
  stop?: string | readonly string[];
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
  /**
   * The text is of this language. Given inline, it is compiled once for as long as it is among the
   * last 64.
   */
  grammar?: Grammar | GrammarSource;
  /** Added to the logits of tokens; -Infinity makes one impossible. */
  logitBias?: readonly (readonly [token: number, bias: number])[];
  /** End a sequence as an end-of-sequence token does, with ignoreEos too. */
  stopTokens?: Tokens;
  /** Sequences of tokens that are not completed. */
  badWords?: readonly Tokens[];
  /**
   * Guess at the tokens that come, so that one step computes several: results do not depend on it,
   * the time does. 'ngram': what followed the last tokens before; 'draft': what the draft model
   * would choose; 'medusa': what Medusa heads would choose; 'auto': whatever there is. 'off'.
   */
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
   * and the call rejects with it; so does an answer that is no boolean, as of an async function.
   */
  shouldStop?: (tokens: Int32Array, index: number, promptTokens: number) => boolean;
  /**
   * Stops the call. That is no error: what was generated so far is the result, its finishReason
   * 'cancelled'.
   */
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

/** How much `compress` leaves; see `llama_compress_options`. */
export interface CompressOptions {
  /** How many tokens all segments have together afterwards. 0 (default): `rate` says it. */
  targetTokens?: number;
  /** The share of all tokens that is left; 0.5. */
  rate?: number;
  /** How many tokens are looked at together; 100. */
  window?: number;
  /**
   * The first pass, which leaves out whole segments, leaves this many times the tokens that may be
   * left; 2.
   */
  coarse?: number;
  /** Tokens with a newline stay before others. */
  keepNewlines?: boolean;
  /** Tokens with a digit stay before others. */
  keepDigits?: boolean;
  signal?: Signal;
}

/** How `encode` encodes. */
export interface EncodeOptions {
  /** Begin with the token that begins a sequence. false. */
  bos?: boolean;
  /** End with the token that ends one. false. */
  eos?: boolean;
  /** Special and added tokens that the text spells become these tokens. false: they are words. */
  special?: boolean;
  /** More tokens are LLAMA_E_TOO_LONG. Any number by default. */
  maxTokens?: number;
}
