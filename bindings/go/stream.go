package llamabi

// #include <llamabi.h>
import "C"

import (
	"context"
	"iter"
	"runtime"
	"unsafe"
)

// EventKind says what happened.
type EventKind int32

// The kinds of events.
const (
	// EventToken: a token was generated or echoed.
	EventToken EventKind = C.LLAMA_EVENT_TOKEN
	// EventFinish: a sequence has ended; nothing with its index follows.
	EventFinish EventKind = C.LLAMA_EVENT_FINISH
)

// Event is something that happened to one sequence of a call.
type Event struct {
	Kind EventKind
	// Index of the sequence in the call.
	Index int
	// Token is -1 in an EventFinish.
	Token int32
	// Logprob of the token, if [Logprobs] was given.
	Logprob float32
	// FinishReason of an EventFinish, else 0.
	FinishReason FinishReason
	// Text that became certain: whole code points, often none. A sequence's texts put together are
	// the text of its [Result].
	Text string
	// TopLogprobs has the most likely tokens at this position, best first, if [TopLogprobs] was given.
	TopLogprobs []Alternative
}

// Stream continues prompts of tokens, event by event. The call begins when the sequence is ranged
// over, and again each time it is; leaving the loop ends it and frees its slots. An error comes last,
// with a zero Event.
func (m *Model) Stream(ctx context.Context, prompts [][]int32, opts ...GenerateOption) iter.Seq2[Event, error] {
	return m.stream(ctx, opts, func() ([][]int32, error) { return prompts, nil })
}

// StreamText continues texts, as [Model.Stream] continues tokens.
func (m *Model) StreamText(ctx context.Context, prompts []string, opts ...GenerateOption) iter.Seq2[Event, error] {
	return m.stream(ctx, opts, func() ([][]int32, error) {
		return each(prompts, func(p string) ([]int32, error) { return m.Encode(p, true, false) })
	})
}

// StreamChat answers dialogs, as [Model.Stream] continues tokens. Where [Model.Chat] answers a dialog
// that contains one of the format's own tags with [FinishUnsafe], this fails with [ErrInvalidArgument].
func (m *Model) StreamChat(ctx context.Context, dialogs [][]Message, opts ...GenerateOption) iter.Seq2[Event, error] {
	return m.stream(ctx, opts, func() ([][]int32, error) { return each(dialogs, m.EncodeDialog) })
}

func each[T any](prompts []T, encode func(T) ([]int32, error)) ([][]int32, error) {
	encoded := make([][]int32, len(prompts))
	for i, p := range prompts {
		var err error
		if encoded[i], err = encode(p); err != nil {
			return nil, err
		}
	}
	return encoded, nil
}

func (m *Model) stream(ctx context.Context, opts []GenerateOption, encode func() ([][]int32, error)) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := m.pull(ctx, opts, encode, func(ev Event) bool { return yield(ev, nil) }); err != nil {
			yield(Event{}, err)
		}
	}
}

// pull gives events to yield until it returns false, and returns nil then.
func (m *Model) pull(ctx context.Context, opts []GenerateOption, encode func() ([][]int32, error), yield func(Event) bool) error {
	end, err := m.call()
	if err != nil {
		return err
	}
	defer end()
	flag, release, err := cancelFlag(ctx)
	if err != nil {
		return err
	}
	defer release()
	prompts, err := encode()
	if err != nil {
		return err
	}
	tokens, lens := flatten(prompts)

	var stream *C.llama_stream_t
	var cerr cError
	if err := func() error {
		var pin runtime.Pinner
		defer pin.Unpin()
		o, err := cGenerateOptions(opts, flag, &pin)
		if err != nil {
			return err
		}
		status := C.llama_stream_open(m.c, unsafe.SliceData(tokens), unsafe.SliceData(lens), C.size_t(len(lens)), o, &stream, cerr.init())
		if status != C.LLAMA_OK {
			return cerr.toError(ctx, status, m.handle)
		}
		return nil
	}(); err != nil {
		return err
	}
	defer C.llama_stream_free(stream)

	ev := C.llama_event{struct_size: C.sizeof_llama_event}
	for {
		switch status := C.llama_stream_next(stream, &ev, -1, cerr.init()); status {
		case C.LLAMA_OK:
			if !yield(eventOf(&ev)) {
				return nil
			}
		case C.LLAMA_DONE:
			return nil
		default:
			return cerr.toError(ctx, status, m.handle)
		}
	}
}

func eventOf(ev *C.llama_event) Event {
	return Event{
		Kind:         EventKind(ev.kind),
		Index:        int(ev.index),
		Token:        int32(ev.token),
		Logprob:      float32(ev.logprob),
		FinishReason: FinishReason(ev.finish_reason),
		Text:         string(unsafe.Slice((*byte)(unsafe.Pointer(ev.text)), ev.text_len)),
		TopLogprobs:  copied[Alternative](unsafe.Pointer(ev.top), ev.n_top),
	}
}
