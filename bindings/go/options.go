package llamabi

// #include <llamabi.h>
import "C"

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// Device is where a model runs.
type Device int32

// The devices.
const (
	DeviceAuto Device = C.LLAMA_DEVICE_AUTO
	DeviceCPU  Device = C.LLAMA_DEVICE_CPU
	DeviceCUDA Device = C.LLAMA_DEVICE_CUDA
)

// Precision is how exactly the CPU multiplies.
type Precision int32

// The precisions. Full rounds activations so little that it does not show; fast has the fastest
// arithmetic of the processor, for many sequences. PrecisionAuto: full, but if more than eight
// sequences may run at the same time, generated rows are multiplied as those of prompts are.
const (
	PrecisionAuto Precision = C.LLAMA_PRECISION_AUTO
	PrecisionFull Precision = C.LLAMA_PRECISION_FULL
	PrecisionFast Precision = C.LLAMA_PRECISION_FAST
)

// Dtype is how numbers are stored.
type Dtype int32

// The dtypes. DtypeAuto: weights as stored in the checkpoint, the KV cache to suit them.
const (
	DtypeAuto Dtype = C.LLAMA_DTYPE_AUTO
	DtypeF32  Dtype = C.LLAMA_DTYPE_F32
	DtypeF16  Dtype = C.LLAMA_DTYPE_F16
	DtypeBF16 Dtype = C.LLAMA_DTYPE_BF16
	DtypeInt8 Dtype = C.LLAMA_DTYPE_INT8
	DtypeInt4 Dtype = C.LLAMA_DTYPE_INT4
	DtypeNF4  Dtype = C.LLAMA_DTYPE_NF4
	DtypeFP8  Dtype = C.LLAMA_DTYPE_FP8
	DtypeK4   Dtype = C.LLAMA_DTYPE_K4 // in Info only
	DtypeK8   Dtype = C.LLAMA_DTYPE_K8 // in Info only
	DtypeK5   Dtype = C.LLAMA_DTYPE_K5 // in Info only
	DtypeK6   Dtype = C.LLAMA_DTYPE_K6 // in Info only
)

// LogLevel is how severe a log line is; lower is more severe.
type LogLevel int32

// The log levels.
const (
	LogError LogLevel = C.LLAMA_LOG_ERROR
	LogWarn  LogLevel = C.LLAMA_LOG_WARN
	LogInfo  LogLevel = C.LLAMA_LOG_INFO
	LogDebug LogLevel = C.LLAMA_LOG_DEBUG
)

// Option changes how [Open] loads a model.
type Option func(*buildOptions)

type buildOptions struct {
	c         C.llama_build_options
	tokenizer string
	template  string
	draft     string
	medusa    string
	adapters  []string
	scales    []float32
	devices   []C.int32_t
	progress  func(float32) bool
	log       func(LogLevel, string)
	err       error
}

// number checks that v fits into what C takes, and remembers the first that does not. The sentence
// is C's, with the limits that C has: it cannot say it of a number that it cannot be given.
func number[T C.uint32_t | C.int32_t](err *error, name string, v, least, most int) T {
	if *err == nil {
		switch {
		case v < least:
			*err = invalid("%s is %d, must be at least %d", name, v, least)
		case v > most:
			*err = invalid("%s is %d, must be at most %d", name, v, most)
		}
	}
	return T(v)
}

// milliseconds32 is a duration for C, rounded up: what is not 0 shall not become the default.
func milliseconds32(err *error, name string, d time.Duration) C.uint32_t {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return number[C.uint32_t](err, name, int(ms), 0, math.MaxUint32-1)
}

// apply applies options in order. One that is nil is a mistake of the caller's, not a default.
func apply[O any, F ~func(*O)](opts []F, o *O) error {
	for i, opt := range opts {
		if opt == nil {
			return invalid("option %d of %d is nil", i, len(opts))
		}
		opt(o)
	}
	return nil
}

// path is a path for C.
func (o *buildOptions) path(name, path string) *C.char {
	if strings.ContainsRune(path, 0) && o.err == nil {
		o.err = invalid("%s %q contains a NUL", name, path)
	}
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(append([]byte(path), 0))))
}

// WithTokenizer names the tokenizer's file.
func WithTokenizer(path string) Option { return func(o *buildOptions) { o.tokenizer = path } }

// WithMaxSeqLen sets the most tokens of a sequence, prompt included. 512.
func WithMaxSeqLen(n int) Option {
	return func(o *buildOptions) {
		o.c.max_seq_len = number[C.uint32_t](&o.err, "max_seq_len", n, 1, math.MaxUint32)
	}
}

// WithMaxBatchSize sets the most sequences that run at the same time; more wait. 8.
func WithMaxBatchSize(n int) Option {
	return func(o *buildOptions) {
		o.c.max_batch_size = number[C.uint32_t](&o.err, "max_batch_size", n, 1, math.MaxUint32)
	}
}

// WithModelParallelSize says how many shards the checkpoint must have. 0: any number.
func WithModelParallelSize(n int) Option {
	return func(o *buildOptions) {
		o.c.model_parallel_size = number[C.int32_t](&o.err, "model_parallel_size", n, 0, math.MaxInt32)
	}
}

// WithDevice chooses the device, and which one of several. DeviceAuto, 0.
func WithDevice(d Device, index int) Option {
	return func(o *buildOptions) {
		o.c.device = C.int32_t(d)
		o.c.device_index = number[C.int32_t](&o.err, "device_index", index, 0, math.MaxInt32)
	}
}

// WithDevices puts a rank with its share of the model on each of these NUMA nodes, whose numbers
// `lscpu` says; a node may be named more than once. None: one rank.
func WithDevices(nodes ...int) Option {
	return func(o *buildOptions) {
		o.devices = nil
		for i, node := range nodes {
			name := fmt.Sprintf("devices[%d]", i)
			o.devices = append(o.devices, number[C.int32_t](&o.err, name, node, 0, math.MaxInt32))
		}
	}
}

// WithRankTimeout sets how long a rank may be silent while others wait for it; after that, calls
// fail with [ErrPeer]. 0: a minute.
func WithRankTimeout(d time.Duration) Option {
	return func(o *buildOptions) { o.c.rank_timeout_ms = milliseconds32(&o.err, "rank_timeout_ms", d) }
}

// WithThreads sets the threads of the CPU backend, of each rank. 0: as many as the process may use.
func WithThreads(n int) Option {
	return func(o *buildOptions) {
		o.c.n_threads = number[C.uint32_t](&o.err, "n_threads", n, 0, maxThreads)
	}
}

// maxThreads is as llamabi.h says of n_threads.
const maxThreads = 1024

// WithWeightsDtype converts the weights as they are read. DtypeAuto.
func WithWeightsDtype(d Dtype) Option {
	return func(o *buildOptions) { o.c.weights_dtype = C.int32_t(d) }
}

// WithKVDtype sets the dtype of the KV cache. DtypeAuto.
func WithKVDtype(d Dtype) Option { return func(o *buildOptions) { o.c.kv_dtype = C.int32_t(d) } }

// WithPrecision sets how exactly the CPU multiplies. PrecisionAuto.
func WithPrecision(p Precision) Option {
	return func(o *buildOptions) { o.c.precision = C.int32_t(p) }
}

// WithSeed seeds the generator that gives a seed to calls without one. 1.
func WithSeed(seed uint64) Option { return func(o *buildOptions) { o.c.seed = C.uint64_t(seed) } }

// WithGPUMemory sets the most bytes of GPU memory that the model allocates; what does not fit is
// [ErrDeviceMemory]. 0: as many as are free.
func WithGPUMemory(bytes uint64) Option {
	return func(o *buildOptions) { o.c.gpu_memory_bytes = C.uint64_t(bytes) }
}

// WithMaxWaiting sets the most calls that wait for slots; one more is [ErrBusy]. 0: 1024.
func WithMaxWaiting(n int) Option {
	return func(o *buildOptions) {
		o.c.max_waiting = number[C.uint32_t](&o.err, "max_waiting", n, 0, math.MaxUint32)
	}
}

// WithMaxStall sets how long a sequence whose reader is behind keeps its slot while others wait, to
// a millisecond. Then it is set aside, and goes on when the reader has caught up. 0: one second.
func WithMaxStall(d time.Duration) Option {
	return func(o *buildOptions) { o.c.max_stall_ms = milliseconds32(&o.err, "max_stall_ms", d) }
}

// WithMaxStep sets how long a step should take at most that computes a chunk of a prompt beside
// running streams: about the longest time between two of their tokens while prompts arrive. 0: 100 ms.
func WithMaxStep(d time.Duration) Option {
	return func(o *buildOptions) { o.c.max_step_ms = milliseconds32(&o.err, "max_step_ms", d) }
}

// Never is for [WithMaxUnread].
const Never time.Duration = math.MaxInt64

// WithMaxUnread sets after how long a stream whose reader is behind and takes no event ends with
// [FinishUnread], to a millisecond. 0: one minute.
func WithMaxUnread(d time.Duration) Option {
	return func(o *buildOptions) {
		if d == Never {
			o.c.max_unread_ms = math.MaxUint32
			return
		}
		o.c.max_unread_ms = milliseconds32(&o.err, "max_unread_ms", d)
	}
}

// WithStallMemory sets the most bytes of host memory for sequences that [WithMaxStall] sets aside.
// Where it is not enough, the stream that has gone unread the longest ends with [FinishUnread]. 0:
// as many as the KV cache has.
func WithStallMemory(bytes uint64) Option {
	return func(o *buildOptions) { o.c.stall_memory_bytes = C.uint64_t(bytes) }
}

// WithChatTemplate sets the text of a Jinja template for chats, instead of the model's.
func WithChatTemplate(text string) Option {
	return func(o *buildOptions) { o.template = text }
}

// WithChatNow sets what strftime_now of a chat template sees; the zero time: the clock.
func WithChatNow(now time.Time) Option {
	return func(o *buildOptions) {
		if !now.IsZero() {
			o.c.chat_now = C.int64_t(now.Unix())
		}
	}
}

// WithAdapter merges the LoRA adapter in dir into the weights, weighted by scale; several are
// merged in their order.
func WithAdapter(dir string, scale float32) Option {
	return func(o *buildOptions) {
		o.adapters = append(o.adapters, dir)
		o.scales = append(o.scales, scale)
	}
}

// WithDraft loads a draft model beside the model: a smaller checkpoint with the same tokens, which
// guesses at tokens ([Speculate]), or which the model is contrasted with ([Contrast]).
func WithDraft(dir string) Option { return func(o *buildOptions) { o.draft = dir } }

// WithMedusa loads Medusa heads from a directory, which were trained for the model and guess at tokens
// ([Speculate]).
func WithMedusa(dir string) Option { return func(o *buildOptions) { o.medusa = dir } }

// WithDraftDtypes sets the dtypes of the draft model's weights and KV cache. DtypeAuto, DtypeAuto.
func WithDraftDtypes(weights, kv Dtype) Option {
	return func(o *buildOptions) {
		o.c.draft_weights_dtype, o.c.draft_kv_dtype = C.int32_t(weights), C.int32_t(kv)
	}
}

// WithProgress has report hear the fraction of the checkpoint that has been read, 0 to 1. It runs
// on the goroutine that called [Open]; false stops the loading ([ErrCancelled]).
func WithProgress(report func(fraction float32) bool) Option {
	return func(o *buildOptions) { o.progress = report }
}

// WithLog has log hear the model's log lines down to level. It runs on goroutines that are inside a
// call on the model, on several at once, and must not call the model's generating methods.
func WithLog(level LogLevel, log func(level LogLevel, line string)) Option {
	return func(o *buildOptions) {
		o.c.log_level = C.int32_t(level)
		o.log = log
	}
}

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

// MaxGenLen sets the most tokens to generate per sequence; 0 scores the prompt. As many as
// max_seq_len has room for.
func MaxGenLen(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.max_gen_len = number[C.uint32_t](&o.err, "max_gen_len", n, 0, math.MaxUint32)
	}
}

// Temperature divides the logits; 0 takes the most likely token. 0.6.
func Temperature(t float32) GenerateOption {
	return func(o *generateOptions) { o.c.temperature = C.float(t) }
}

// TopP keeps the most likely tokens until their probabilities exceed p. 0.9.
func TopP(p float32) GenerateOption { return func(o *generateOptions) { o.c.top_p = C.float(p) } }

// TopK keeps the k most likely tokens; 0: all. 0.
func TopK(k int) GenerateOption {
	return func(o *generateOptions) {
		o.c.top_k = number[C.int32_t](&o.err, "top_k", k, 0, math.MaxInt32)
	}
}

// MinP keeps tokens with at least this share of the most likely token's probability; 0: off. 0.
func MinP(p float32) GenerateOption { return func(o *generateOptions) { o.c.min_p = C.float(p) } }

// RepetitionPenalty is applied once per distinct token of prompt and output; 1: off. 1.
func RepetitionPenalty(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.repetition_penalty = C.float(p) }
}

// Seed makes the call repeatable: same seed, same text. 0: the next draw of the model's generator.
func Seed(seed uint64) GenerateOption {
	return func(o *generateOptions) { o.c.seed = C.uint64_t(seed) }
}

// CacheSalt keeps prefixes apart: the call takes pages from the prefix cache only of calls with the
// same salt. Results do not depend on it. 0: of all calls with 0.
func CacheSalt(salt uint64) GenerateOption {
	return func(o *generateOptions) { o.c.cache_salt = C.uint64_t(salt) }
}

// NumReturnSequences continues each prompt n times, at most max_batch_size: result i*n+j is the
// j-th of prompt i. All share one computation of the prompt. 1.
func NumReturnSequences(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.num_return_sequences = number[C.uint32_t](&o.err, "num_return_sequences", n, 1, math.MaxUint32)
	}
}

// NumBeams above 1 searches each prompt with so many beams, at most max_batch_size; the results are
// its best [NumReturnSequences], best first. 1.
func NumBeams(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.num_beams = number[C.uint32_t](&o.err, "num_beams", n, 1, math.MaxUint32)
	}
}

// LengthPenalty is the power of the length that a beam's sum of log probabilities is divided by. 1.
func LengthPenalty(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.length_penalty = C.float(p) }
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

// MinGenLen keeps end-of-sequence and stop tokens impossible until n tokens are generated. 0.
func MinGenLen(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.min_gen_len = number[C.uint32_t](&o.err, "min_gen_len", n, 0, math.MaxUint32)
	}
}

// NoRepeatNgramSize lets no run of n tokens be in prompt and output twice; 0: off. 0.
func NoRepeatNgramSize(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.no_repeat_ngram_size = number[C.uint32_t](&o.err, "no_repeat_ngram_size", n, 0, math.MaxUint32)
	}
}

// PresencePenalty is subtracted from the logit of every token of the output. 0.
func PresencePenalty(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.presence_penalty = C.float(p) }
}

// FrequencyPenalty is subtracted as often as the output has the token. 0.
func FrequencyPenalty(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.frequency_penalty = C.float(p) }
}

// TypicalP keeps the tokens whose surprise is nearest to the entropy, up to the probability p; 0:
// off. 0.
func TypicalP(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.typical_p = C.float(p) }
}

// EpsilonCutoff drops tokens less probable than p; 0: off. 0.
func EpsilonCutoff(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.epsilon_cutoff = C.float(p) }
}

// EtaCutoff drops tokens less probable than p and than its square root times exp(-entropy); 0: off.
// 0.
func EtaCutoff(p float32) GenerateOption {
	return func(o *generateOptions) { o.c.eta_cutoff = C.float(p) }
}

// MaxTime ends the call's sequences with [FinishTime] so long after the call, to a millisecond. 0:
// never.
func MaxTime(d time.Duration) GenerateOption {
	return func(o *generateOptions) { o.c.max_time_ms = milliseconds32(&o.err, "max_time_ms", d) }
}

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

func cTokens(c []C.int32_t, tokens []int32) []C.int32_t {
	for _, token := range tokens {
		c = append(c, C.int32_t(token))
	}
	return c
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

// DraftLen is how many tokens are guessed at in a step, at most 16; 0: as many as pay. 0.
func DraftLen(n int) GenerateOption {
	return func(o *generateOptions) {
		o.c.draft_len = number[C.uint32_t](&o.err, "draft_len", n, 0, math.MaxUint32)
	}
}

// Predicted is a text that the output may repeat in parts, as an edited file repeats the old one.
func Predicted(tokens ...int32) GenerateOption {
	return func(o *generateOptions) { o.predicted = cTokens(nil, tokens) }
}

// Contrast has tokens chosen by what the model says beyond the draft model ([WithDraft]): from (1 +
// beta) times its logit minus beta times the draft model's, among tokens that have at least the
// share alpha of the most likely one's probability (0: 0.1). A beta of 0 is off. 0, 0.
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

// WithLogits has change see, and perhaps change, the logits that each token is drawn from, on the
// goroutine of the call or of the stream's loop. It must not call the model's generating methods.
func WithLogits(change func(row LogitsRow)) GenerateOption {
	return func(o *generateOptions) { o.logits = change }
}

// WithStopFunc ends a sequence with the token at which ends returns true, with [FinishCaller]. It is
// asked at every token, on the goroutine of the call or of the stream's loop: tokens are the
// prompt's, nPrompt of them, and the output's so far. Do not keep them. It must not call the model's
// generating methods.
func WithStopFunc(ends func(index int, tokens []int32, nPrompt int) bool) GenerateOption {
	return func(o *generateOptions) { o.deciders.stop = ends }
}

// WithStopper has s end sequences of a stream. One Stopper is for one stream at a time.
func WithStopper(s *Stopper) GenerateOption { return func(o *generateOptions) { o.stopper = s } }

// TopLogprobs reports the n most likely tokens at each position.
func TopLogprobs(n int) GenerateOption {
	return func(o *generateOptions) {
		if n > math.MaxUint32 && o.err == nil {
			o.err = invalid("top_logprobs is %d, must be at most the vocabulary", n)
		}
		o.c.top_logprobs = number[C.uint32_t](&o.err, "top_logprobs", n, 0, math.MaxUint32)
	}
}

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

// pinned is a list for C; NULL where it is empty.
func pinned[T any](list []T, pin *runtime.Pinner) (*T, C.size_t) {
	if len(list) == 0 {
		return nil, 0
	}
	pin.Pin(unsafe.SliceData(list))
	return unsafe.SliceData(list), C.size_t(len(list))
}

// cStrings copies texts into one buffer, pinned by pin, each with a NUL.
func cStrings(texts []string, pin *runtime.Pinner) ([]*C.char, []C.size_t) {
	size := 1 // so that there is something to pin
	for _, s := range texts {
		size += len(s) + 1
	}
	buffer := make([]byte, 0, size)
	pin.Pin(unsafe.SliceData(buffer))
	pointers := make([]*C.char, len(texts))
	lens := make([]C.size_t, len(texts))
	for i, s := range texts {
		start := len(buffer)
		buffer = append(append(buffer, s...), 0)
		pointers[i] = (*C.char)(unsafe.Pointer(&buffer[start]))
		lens[i] = C.size_t(len(s))
	}
	return pointers, lens
}
