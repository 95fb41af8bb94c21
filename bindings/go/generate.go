package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"runtime"
	"strconv"
	"unsafe"
)

// FinishReason says why a sequence ended.
type FinishReason int32

// The finish reasons. FinishUnsafe: the dialog contained one of the chat format's own tags and was
// not given to the model; a sentence that says so is the text. FinishTime: see [MaxTime].
// FinishCaller: see [WithStopFunc] and [WithStopper].
// FinishUnread: nobody read the stream for too long, see [WithMaxUnread]. FinishNotFinite: the
// model made no number that is finite, so no token was possible.
const (
	FinishStop       FinishReason = C.LLAMA_FINISH_STOP
	FinishLength     FinishReason = C.LLAMA_FINISH_LENGTH
	FinishCancelled  FinishReason = C.LLAMA_FINISH_CANCELLED
	FinishStopString FinishReason = C.LLAMA_FINISH_STOP_STRING
	FinishUnsafe     FinishReason = C.LLAMA_FINISH_UNSAFE
	FinishTime       FinishReason = C.LLAMA_FINISH_TIME
	FinishCaller     FinishReason = C.LLAMA_FINISH_CALLER
	FinishUnread     FinishReason = C.LLAMA_FINISH_UNREAD
	FinishNotFinite  FinishReason = C.LLAMA_FINISH_NOT_FINITE
)

var finishReasons = map[FinishReason]string{
	0:                "none",
	FinishStop:       "stop",
	FinishLength:     "length",
	FinishCancelled:  "cancelled",
	FinishStopString: "stop_string",
	FinishUnsafe:     "unsafe",
	FinishTime:       "time",
	FinishCaller:     "caller",
	FinishUnread:     "unread",
	FinishNotFinite:  "not_finite",
}

// String is the reason's name, "stop_string"; the number of one that only a newer library knows.
func (f FinishReason) String() string {
	if name, known := finishReasons[f]; known {
		return name
	}
	return strconv.Itoa(int(f))
}

// MarshalText gives what String gives: a reason is its name in JSON, too.
func (f FinishReason) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText takes what MarshalText gives.
func (f *FinishReason) UnmarshalText(text []byte) error {
	for reason, name := range finishReasons {
		if name == string(text) {
			*f = reason
			return nil
		}
	}
	number, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		return invalid("finish reason %q is not known", text)
	}
	*f = FinishReason(number)
	return nil
}

// Alternative is a token and the natural log of its probability.
type Alternative struct {
	Token   int32
	Logprob float32
}

// Result is one sequence of a call.
type Result struct {
	// Tokens generated, after the prompt's if echoed, without the EOS.
	Tokens []int32
	// Logprobs has one per token, if [Logprobs] was given.
	Logprobs []float32
	// Text is cut before a stop string.
	Text string
	// TopLogprobs has the most likely tokens at each position, best first, if [TopLogprobs] was given.
	TopLogprobs  [][]Alternative
	FinishReason FinishReason
	// SumLogprob is, of a beam search, the sum of log probabilities that the search compared, and
	// Score that over the length to the power of [LengthPenalty]: by which its results are ranked.
	// Minus infinity both for a result that it did not have. Without beams, both are the sum of the
	// log probabilities, if [Logprobs] was given.
	SumLogprob, Score float32
	Stats             RequestStats
}

// Message of a dialog. Role is "system", "user" or "assistant"; with a chat template any that it
// takes. In JSON it has OpenAI's shape, as a [ChatRequest] needs it.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Generate continues prompts of tokens and waits for the end. The results are in the order of the
// prompts. Cancelled by ctx or [Model.Close], it returns what was generated so far beside the
// error.
func (m *Model) Generate(ctx context.Context, prompts [][]int32, opts ...GenerateOption) ([]Result, error) {
	tokens, lens := flatten(prompts)
	return m.run(ctx, len(prompts), opts, func(_ *runtime.Pinner, o *C.llama_generate_options, out **C.llama_result_t, err *C.llama_error) C.llama_status {
		return C.llama_generate(m.c, unsafe.SliceData(tokens), unsafe.SliceData(lens), C.size_t(len(lens)), o, out, err)
	})
}

// TextCompletion continues texts, as [Model.Generate] continues tokens.
func (m *Model) TextCompletion(ctx context.Context, prompts []string, opts ...GenerateOption) ([]Result, error) {
	return m.run(ctx, len(prompts), opts, func(pin *runtime.Pinner, o *C.llama_generate_options, out **C.llama_result_t, err *C.llama_error) C.llama_status {
		texts, lens := cStrings(prompts, pin)
		return C.llama_text_completion(m.c, unsafe.SliceData(texts), unsafe.SliceData(lens), C.size_t(len(lens)), o, out, err)
	})
}

// Chat answers dialogs of plain texts, as [Model.Generate] continues tokens: by the model's chat
// template where there is one (see [Model.ChatMessages], which takes tools too), else in Meta's
// format. In the Llama 2 format a dialog is perhaps a system message, then user and assistant in
// turn, ending with user.
func (m *Model) Chat(ctx context.Context, dialogs [][]Message, opts ...GenerateOption) ([]Result, error) {
	return m.run(ctx, len(dialogs), opts, func(pin *runtime.Pinner, o *C.llama_generate_options, out **C.llama_result_t, err *C.llama_error) C.llama_status {
		msgs, lens := cDialogs(dialogs, pin)
		return C.llama_chat_completion(m.c, unsafe.SliceData(msgs), unsafe.SliceData(lens), C.size_t(len(lens)), o, out, err)
	})
}

// run surrounds the calls that wait for the results of n prompts.
func (m *Model) run(ctx context.Context, n int, opts []GenerateOption,
	generate func(*runtime.Pinner, *C.llama_generate_options, **C.llama_result_t, *C.llama_error) C.llama_status,
) ([]Result, error) {
	end, err := m.call()
	if err != nil {
		return nil, err
	}
	defer end()
	flag, release, err := cancelFlag(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	var pin runtime.Pinner
	defer pin.Unpin()
	o, own, err := cGenerateOptions(opts, flag, &pin)
	if err != nil {
		return nil, err
	}
	if own.stopper != nil {
		return nil, invalid("WithStopper is for streams")
	}
	defer own.deciders.put(o)()
	var result *C.llama_result_t
	var cerr cError
	status := generate(&pin, o, &result, cerr.init())
	runtime.KeepAlive(opts) // a grammar among them
	defer C.llama_result_free(result)
	own.deciders.goOn()
	results := resultsOf(result)
	if status != C.LLAMA_OK {
		err := cerr.toError(ctx, status, m.handle)
		if err.Status == ErrCancelled && result == nil {
			results = neverBegun(n, o)
		}
		return results, err
	}
	return results, nil
}

// neverBegun is what a call has that was cancelled before the library saw it: the ends of its
// sequences.
func neverBegun(n int, o *C.llama_generate_options) []Result {
	const most = 65_536 // as many can a call have
	n *= max(int(o.num_return_sequences), 1)
	results := make([]Result, min(n, most))
	for i := range results {
		results[i].FinishReason = FinishCancelled
	}
	return results
}

func flatten(prompts [][]int32) ([]C.int32_t, []C.size_t) {
	total := 1 // so that the slice has a pointer
	for _, p := range prompts {
		total += len(p)
	}
	tokens := make([]C.int32_t, 0, total)
	lens := make([]C.size_t, len(prompts))
	for i, p := range prompts {
		for _, t := range p {
			tokens = append(tokens, C.int32_t(t))
		}
		lens[i] = C.size_t(len(p))
	}
	return tokens, lens
}

func cDialogs(dialogs [][]Message, pin *runtime.Pinner) ([]C.llama_message, []C.size_t) {
	var all []Message
	lens := make([]C.size_t, len(dialogs))
	for i, dialog := range dialogs {
		all = append(all, dialog...)
		lens[i] = C.size_t(len(dialog))
	}
	return cMessages(all, pin), lens
}

func cMessages(messages []Message, pin *runtime.Pinner) []C.llama_message {
	texts := make([]string, 0, 2*len(messages))
	for _, m := range messages {
		texts = append(texts, m.Role, m.Content)
	}
	pointers, lens := cStrings(texts, pin)
	msgs := make([]C.llama_message, len(messages), len(messages)+1)
	for i := range msgs {
		msgs[i] = C.llama_message{role: pointers[2*i], role_len: lens[2*i],
			content: pointers[2*i+1], content_len: lens[2*i+1]}
	}
	return msgs
}

// resultsOf copies everything out of a result.
func resultsOf(r *C.llama_result_t) []Result {
	results := make([]Result, C.llama_result_count(r))
	for i := range results {
		i, res := C.size_t(i), &results[i]
		var n C.size_t

		var tokens *C.int32_t
		if C.llama_result_tokens(r, i, &tokens, &n) == C.LLAMA_OK {
			res.Tokens = copied[int32](unsafe.Pointer(tokens), n)
		}
		var logprobs *C.float
		if C.llama_result_logprobs(r, i, &logprobs, &n) == C.LLAMA_OK {
			res.Logprobs = copied[float32](unsafe.Pointer(logprobs), n)
		}
		var text *C.char
		if C.llama_result_text(r, i, &text, &n) == C.LLAMA_OK {
			res.Text = string(unsafe.Slice((*byte)(unsafe.Pointer(text)), n))
		}
		var any bool
		top := make([][]Alternative, len(res.Tokens))
		for position := range top {
			var p *C.llama_alternative
			if C.llama_result_top_logprobs(r, i, C.size_t(position), &p, &n) == C.LLAMA_OK && n > 0 {
				top[position] = copied[Alternative](unsafe.Pointer(p), n)
				any = true
			}
		}
		if any {
			res.TopLogprobs = top
		}
		res.FinishReason = FinishReason(C.llama_result_finish_reason(r, i))
		var sum, score C.float
		if C.llama_result_score(r, i, &sum, &score) == C.LLAMA_OK {
			res.SumLogprob, res.Score = float32(sum), float32(score)
		}
		stats := C.llama_request_stats{struct_size: C.sizeof_llama_request_stats}
		if C.llama_result_stats(r, i, &stats) == C.LLAMA_OK {
			res.Stats = requestStatsOf(&stats)
		}
	}
	return results
}

// Alternative has the layout of llama_alternative, which is frozen; copied relies on it.
var _ = [1]struct{}{}[unsafe.Sizeof(Alternative{})-C.sizeof_llama_alternative]

// copied is a copy of n values at p, nil where there are none.
func copied[T int32 | float32 | Alternative](p unsafe.Pointer, n C.size_t) []T {
	return append([]T(nil), unsafe.Slice((*T)(p), n)...)
}
