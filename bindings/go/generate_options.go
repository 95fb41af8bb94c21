// Options of calls that generate, and how they go to C.

package llamabi

// #include <llamabi.h>
import "C"

import (
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// GenerateOption changes how a call generates.
type GenerateOption func(*generateOptions)

type generateOptions struct {
	c         C.llama_generate_options
	stop      []string
	bias      []C.llama_bias
	ends      []C.int32_t
	bad       []C.int32_t
	lens      []C.size_t
	predicted []C.int32_t
	must      []C.int32_t
	// Tokens of each phrase that must be written, and phrases of each group.
	mustLens, groups []C.size_t
	deciders
	stopper *Stopper
	err     error
}

// Early says when a beam search is over that has found as many beams as it has.
type Early int32

// EarlyFalse: when the best running beam, ending here, would not be among them. EarlyTrue: at once.
// EarlyNever: when no running beam can get among them, however long it becomes.
const (
	EarlyFalse Early = C.LLAMA_EARLY_FALSE
	EarlyTrue  Early = C.LLAMA_EARLY_TRUE
	EarlyNever Early = C.LLAMA_EARLY_NEVER
)

// EarlyStopping says when a beam search is over. EarlyFalse.
func EarlyStopping(when Early) GenerateOption {
	return func(o *generateOptions) { o.c.early_stopping = C.int32_t(when) }
}

// ForceWords are groups of phrases: every result of a beam search has one phrase of each group.
func ForceWords(groups ...[][]int32) GenerateOption {
	return func(o *generateOptions) {
		o.must, o.mustLens, o.groups = nil, nil, nil
		for _, group := range groups {
			for _, phrase := range group {
				o.must = cTokens(o.must, phrase)
				o.mustLens = append(o.mustLens, C.size_t(len(phrase)))
			}
			o.groups = append(o.groups, C.size_t(len(group)))
		}
	}
}

// BeamEvents reports the beams of every step of a search as [EventBeam].
func BeamEvents() GenerateOption { return flag(C.LLAMA_GEN_BEAM_EVENTS) }

// LogitBias adds to the logits of tokens; minus infinity makes one impossible.
func LogitBias(biases map[int32]float32) GenerateOption {
	return func(o *generateOptions) {
		o.bias = nil
		for _, token := range slices.Sorted(maps.Keys(biases)) {
			o.bias = append(o.bias, C.llama_bias{token: C.int32_t(token), bias: C.float(biases[token])})
		}
	}
}

// StopTokens end a sequence as an end-of-sequence token does, with [IgnoreEOS] too.
func StopTokens(tokens ...int32) GenerateOption {
	return func(o *generateOptions) { o.ends = cTokens(nil, tokens) }
}

// BadWords are sequences of tokens that are not completed.
func BadWords(words ...[]int32) GenerateOption {
	return func(o *generateOptions) {
		o.bad, o.lens = nil, nil
		for _, word := range words {
			o.bad = cTokens(o.bad, word)
			o.lens = append(o.lens, C.size_t(len(word)))
		}
	}
}

// Adapter chooses the LoRA adapter that [Model.AddAdapter] gave this id; 0: none.
func Adapter(id uint32) GenerateOption {
	return func(o *generateOptions) { o.c.adapter = C.uint32_t(id) }
}

// Speculation says whether tokens that come are guessed at, so that one step computes several.
// Results do not depend on it, the time does.
type Speculation int32

const (
	SpecOff  Speculation = C.LLAMA_SPEC_OFF
	SpecAuto Speculation = C.LLAMA_SPEC_AUTO
	// SpecNGram repeats what followed the last tokens before.
	SpecNGram Speculation = C.LLAMA_SPEC_NGRAM
	// SpecDraft asks the draft model ([WithDraft]).
	SpecDraft Speculation = C.LLAMA_SPEC_DRAFT
	// SpecMedusa asks the Medusa heads ([WithMedusa]).
	SpecMedusa Speculation = C.LLAMA_SPEC_MEDUSA
)

// Speculate has tokens guessed at. [SpecOff].
func Speculate(s Speculation) GenerateOption {
	return func(o *generateOptions) { o.c.speculation = C.int32_t(s) }
}

// Predicted is a text that the output may repeat in parts, as an edited file repeats the old one.
func Predicted(tokens ...int32) GenerateOption {
	return func(o *generateOptions) { o.predicted = cTokens(nil, tokens) }
}

// Contrast has tokens chosen by what the model says beyond the draft model ([WithDraft]): from (1 +
// beta) times its logit minus beta times the draft model's, among tokens that have at least the
// share alpha of the probability of the most likely one that nothing forbids (0: 0.1). A beta of 0
// is off. 0, 0.
func Contrast(beta, alpha float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.contrast_beta, o.c.contrast_alpha = C.float(beta), C.float(alpha)
	}
}

// Stop sets texts that end a sequence and are cut off.
func Stop(texts ...string) GenerateOption { return func(o *generateOptions) { o.stop = texts } }

// Echo puts the prompt's tokens in front of the result.
func Echo() GenerateOption { return flag(C.LLAMA_GEN_ECHO) }

// Logprobs reports the log probability of each token.
func Logprobs() GenerateOption { return flag(C.LLAMA_GEN_LOGPROBS) }

// NoWait fails with [ErrBusy] rather than wait for a free slot.
func NoWait() GenerateOption { return flag(C.LLAMA_GEN_NO_WAIT) }

// IgnoreEOS goes on after an end-of-sequence token, which then is part of the result.
func IgnoreEOS() GenerateOption { return flag(C.LLAMA_GEN_IGNORE_EOS) }

// Special shows special tokens in texts, where they are left out otherwise. The end-of-sequence
// token that ends a sequence is never shown.
func Special() GenerateOption { return flag(C.LLAMA_GEN_SPECIAL) }

func flag(bit C.uint32_t) GenerateOption { return func(o *generateOptions) { o.c.flags |= bit } }

// WithLogits has change see, and perhaps change, the logits that each token is drawn from. It runs
// within the call or the stream's loop, on its thread, and must not call the model's generating
// methods. A panic or [runtime.Goexit] in it, as of t.FailNow, ends the call and goes on there.
func WithLogits(change func(row LogitsRow)) GenerateOption {
	return func(o *generateOptions) { o.logits = change }
}

// WithStopFunc ends a sequence with the token at which ends returns true, with [FinishCaller]. It
// is asked at every token: tokens are the prompt's, nPrompt of them, and the output's so far. Do
// not keep them. It runs as the function of [WithLogits] does.
func WithStopFunc(ends func(index int, tokens []int32, nPrompt int) bool) GenerateOption {
	return func(o *generateOptions) { o.deciders.stop = ends }
}

// WithStopper has s end sequences of a stream. One Stopper is for one stream at a time.
func WithStopper(s *Stopper) GenerateOption { return func(o *generateOptions) { o.stopper = s } }

// cGenerateOptions makes the struct for C, alone in its allocation, for cgo checks the whole of it.
// What it points to is pinned by pin.
func cGenerateOptions(opts []GenerateOption, cancel *C.llama_cancel_t, pin *runtime.Pinner) (*C.llama_generate_options, *generateOptions, error) {
	var o generateOptions
	C.llama_generate_options_init(&o.c, C.sizeof_llama_generate_options)
	if err := apply(opts, &o); err != nil {
		return nil, nil, err
	}
	for i, s := range o.stop {
		if strings.ContainsRune(s, 0) && o.err == nil {
			o.err = invalid("stop string %d %q contains a NUL", i, s)
		}
	}
	if o.err != nil {
		return nil, nil, o.err
	}
	if len(o.stop) > 0 {
		pointers, _ := cStrings(o.stop, pin)
		pin.Pin(unsafe.SliceData(pointers))
		o.c.stop = unsafe.SliceData(pointers)
		o.c.n_stop = C.size_t(len(pointers))
	}
	o.c.logit_bias, o.c.n_logit_bias = pinned(o.bias, pin)
	o.c.stop_tokens, o.c.n_stop_tokens = pinned(o.ends, pin)
	o.c.predicted, o.c.n_predicted = pinned(o.predicted, pin)
	o.c.bad_words, _ = pinned(o.bad, pin)
	o.c.bad_word_lens, o.c.n_bad_words = pinned(o.lens, pin)
	o.c.force_words, _ = pinned(o.must, pin)
	o.c.force_word_lens, _ = pinned(o.mustLens, pin)
	o.c.force_group_lens, o.c.n_force_groups = pinned(o.groups, pin)
	o.c.cancel = cancel
	c := o.c
	return &c, &o, nil
}

// Numbers of llamabi.h, with its documentation (`make header`).

// MaxGenLen sets max_gen_len of the C API. The most tokens to generate for each sequence. 0
// generates none and scores the prompt. Default: as many as there is room for.
func MaxGenLen(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.max_gen_len = number[C.uint32_t](&o.err, "max_gen_len", n, 0, math.MaxUint32)
	}
}

// Temperature sets temperature of the C API. Temperature: finite and >= 0. 0 takes the most likely
// token. Default: 0.6.
func Temperature(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.temperature = C.float(x)
	}
}

// TopP sets top_p of the C API. Nucleus sampling keeps the most likely tokens until their
// probabilities exceed this; 0 to 1. Default: 0.9.
func TopP(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.top_p = C.float(x)
	}
}

// TopK sets top_k of the C API. Keep so many of the most likely tokens. 0: off.
func TopK(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.top_k = number[C.int32_t](&o.err, "top_k", n, 0, math.MaxInt32)
	}
}

// MinP sets min_p of the C API. Keep tokens with at least this share of the most likely token's
// probability, 0 to 1. 0: off.
func MinP(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.min_p = C.float(x)
	}
}

// RepetitionPenalty sets repetition_penalty of the C API. A finite number > 0. It is applied once
// for each distinct token of prompt and output. 1: off.
func RepetitionPenalty(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.repetition_penalty = C.float(x)
	}
}

// Seed sets seed of the C API. The same seed gives the same text. 0 means the next number of the
// handle's generator.
func Seed(n uint64) GenerateOption {
	return func(o *generateOptions) {
		o.c.seed = C.uint64_t(n)
	}
}

// TopLogprobs sets top_logprobs of the C API. How many of the most likely tokens to report for each
// token, up to the vocabulary. 0: none.
func TopLogprobs(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.top_logprobs = number[C.uint32_t](&o.err, "top_logprobs", n, 0, math.MaxUint32)
	}
}

// CacheSalt sets cache_salt of the C API. A prompt takes pages from the prefix cache only if they
// are of calls with the same salt. So neither cached_tokens nor the time to the first token tells
// what callers with another salt have sent. Any number will do, and results do not depend on it.
// All callers that give 0 share their pages.
func CacheSalt(n uint64) GenerateOption {
	return func(o *generateOptions) {
		o.c.cache_salt = C.uint64_t(n)
	}
}

// NumReturnSequences sets num_return_sequences of the C API. Sequences that continue each prompt, 1
// to max_batch_size; 0 means 1. Sequence i * num_return_sequences + j is the j-th of prompt i, in
// results, events and random draws. The outcome is, to the bit, that of a call that has each prompt
// so many times in a row. But the prompt is computed once, and all of its sequences begin together
// if there are slots for all.
func NumReturnSequences(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.num_return_sequences = number[C.uint32_t](&o.err, "num_return_sequences", n, 0, math.MaxUint32)
	}
}

// NumBeams sets num_beams of the C API. A number above 1 asks for a beam search with so many beams
// for each prompt, up to max_batch_size; 0 and 1 ask for none. The sequences of a prompt are then
// its best num_return_sequences results, best first; there are at most num_beams. A search takes
// the likeliest continuations by their sums of log probabilities, after penalties, biases, bans and
// grammar. Temperature and the filters of draws have no effect. Its TOKEN events come at its end,
// and top_logprobs is at most 128.
func NumBeams(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.num_beams = number[C.uint32_t](&o.err, "num_beams", n, 0, math.MaxUint32)
	}
}

// MinGenLen sets min_gen_len of the C API. So many tokens are generated before an end-of-sequence
// token or one of [StopTokens] is possible; at most max_gen_len. A stop string ends a sequence at
// any length. Default: 0.
func MinGenLen(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.min_gen_len = number[C.uint32_t](&o.err, "min_gen_len", n, 0, math.MaxUint32)
	}
}

// NoRepeatNgramSize sets no_repeat_ngram_size of the C API. Prompt and output together have no run
// of so many tokens twice: a token that would complete such a run is impossible. 0: off.
func NoRepeatNgramSize(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.no_repeat_ngram_size = number[C.uint32_t](&o.err, "no_repeat_ngram_size", n, 0, math.MaxUint32)
	}
}

// PresencePenalty sets presence_penalty of the C API. OpenAI's presence penalty: subtracted from
// the logit of every token that the output has. Finite. Default: 0.
func PresencePenalty(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.presence_penalty = C.float(x)
	}
}

// FrequencyPenalty sets frequency_penalty of the C API. OpenAI's frequency penalty: subtracted from
// the logit of a token as often as the output has the token. Finite. Default: 0.
func FrequencyPenalty(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.frequency_penalty = C.float(x)
	}
}

// TypicalP sets typical_p of the C API. Typical sampling: of the tokens that the filters above
// leave, keep those whose surprise -ln p is nearest to the entropy, until their probabilities reach
// this; 0 to 1. 0: off.
func TypicalP(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.typical_p = C.float(x)
	}
}

// EpsilonCutoff sets epsilon_cutoff of the C API. After that, drop tokens less probable than this;
// 0 to below 1. The most likely token stays. 0: off.
func EpsilonCutoff(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.epsilon_cutoff = C.float(x)
	}
}

// EtaCutoff sets eta_cutoff of the C API. After that, drop tokens that are less probable than this
// and less probable than its square root times exp(-entropy); 0 to below 1. The most likely token
// stays. 0: off.
func EtaCutoff(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.eta_cutoff = C.float(x)
	}
}

// MaxTime sets max_time_ms of the C API. So many milliseconds after the call, each of its sequences
// ends with [FinishTime], when the step that is under way has ended. This includes a sequence that
// still waits for a slot. A text that is being encoded is encoded first; that time counts. 0:
// never.
func MaxTime(d time.Duration) GenerateOption {
	return func(o *generateOptions) {
		o.c.max_time_ms = milliseconds32(&o.err, "max_time_ms", d)
	}
}

// LengthPenalty sets length_penalty of the C API. The score of a beam is its sum of log
// probabilities, divided by its length to this power. Above 0, long beams gain. Finite. Without
// num_beams it has no effect. Default: 1.
func LengthPenalty(x float32) GenerateOption {
	return func(o *generateOptions) {
		o.c.length_penalty = C.float(x)
	}
}

// DraftLen sets draft_len of the C API. 0: as many guesses in a step as measurements say that pay,
// often none. 1 to 16: always so many, wherever something is found and the step has room.
func DraftLen(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.draft_len = number[C.uint32_t](&o.err, "draft_len", n, 0, math.MaxUint32)
	}
}

// End of numbers.
